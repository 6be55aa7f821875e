//! The application in each pod of the demo: answers every request with who it is.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

/// Serves until the process ends; prints the bound address first.
pub async fn serve(listen: SocketAddr, instance: &str, version: &str) -> Result<()> {
    let listener =
        TcpListener::bind(listen).await.with_context(|| format!("the demo's application can't bind {listen}"))?;
    println!("{}", listener.local_addr()?);
    let body =
        Bytes::from(format!("{{\"service\":\"orders\",\"instance\":\"{instance}\",\"version\":\"{version}\"}}\n"));
    loop {
        let (stream, _) = match listener.accept().await {
            Ok(accepted) => accepted,
            // A client that went away before it was accepted is no reason to stop.
            Err(_) => continue,
        };
        let _ = stream.set_nodelay(true);
        let body = body.clone();
        tokio::spawn(async move {
            let answer = service_fn(move |_| {
                let body = body.clone();
                async move { Response::builder().header("content-type", "application/json").body(Full::new(body)) }
            });
            // A connection that breaks is the client's business.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
        });
    }
}
