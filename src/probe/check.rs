//! One check: a TCP connection, or a GET that must answer 200 to 399, inside the check's timeout. The answer may say how busy the
//! application is.

use bytes::Bytes;
use http::{Request, header};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, time::timeout};

use super::{Target, load, resolve};
use crate::config::{CheckKind, LoadSource};

/// Asks once: the load that the answer tells, if it is asked for and does; the error says in words what was seen.
pub(super) async fn once(target: &Target) -> Result<Option<f64>, String> {
    let limit = target.check.timeout;
    match timeout(limit, ask(target)).await {
        Ok(answer) => answer,
        Err(_) => Err(format!("no answer from {} in {}", target.authority, humantime::format_duration(limit))),
    }
}

async fn ask(target: &Target) -> Result<Option<f64>, String> {
    let addr = resolve(&target.authority).await?;
    let stream = TcpStream::connect(addr).await.map_err(|error| format!("cannot connect to {addr}: {error}"))?;
    match &target.check.kind {
        CheckKind::None | CheckKind::Tcp => Ok(None),
        CheckKind::Http(path) => get(stream, target, path).await,
    }
}

async fn get(stream: TcpStream, target: &Target, path: &str) -> Result<Option<f64>, String> {
    // Applications with many checks a second would otherwise collect sockets in TIME_WAIT on their side.
    let request = Request::get(path)
        .header(header::HOST, &target.authority)
        .header(header::USER_AGENT, "lanemesh-check")
        .header(header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|error| format!("check path `{path}` cannot be asked for: {error}"))?;
    let failed = |error: hyper::Error| format!("GET {path} at {}: {error}", target.authority);
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    let answer = sender.send_request(request);
    tokio::pin!(answer, connection);
    let response = loop {
        tokio::select! {
            response = &mut answer => break response.map_err(failed)?,
            // The connection is driven here; its own error reaches the answer as well.
            ended = &mut connection => if let Err(error) = ended { return Err(failed(error)) },
        }
    };
    let status = response.status().as_u16();
    if !(200..400).contains(&status) {
        return Err(format!("GET {path} answered {status}"));
    }
    let LoadSource::Check(capacity) = target.check.load else { return Ok(None) };
    let text = response.headers().get(load::HEADER).and_then(|value| value.to_str().ok());
    Ok(text.and_then(|text| load::said(text, capacity)))
}
