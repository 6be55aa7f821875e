//! The yardstick: a proxy of hyper and hyper-util's pooled client as one would write it in an afternoon, with a hash over the
//! instances and nothing else. This program runs itself as it.

use std::{convert::Infallible, net::SocketAddr};

use http::{HeaderName, Request, Response, Uri, Version, header, uri};
use http_body_util::{Either, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};

/// Makes this program the proxy: followed by protocol (`h1`, `h2`), workers, address, instances.
pub const FLAG: &str = "--plain-hyper-proxy";

type Answer = Response<Either<Incoming, Full<hyper::body::Bytes>>>;

/// Serves until it is killed.
pub fn run(args: &[String]) {
    let h2 = args[0] == "h2";
    let workers = args[1].parse().expect("a number of workers");
    let addr: SocketAddr = args[2].parse().expect("an address");
    let instances: Vec<String> = args[3..].to_vec();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build();
    runtime.expect("a runtime").block_on(serve(addr, h2, instances));
}

async fn serve(addr: SocketAddr, h2: bool, instances: Vec<String>) {
    let listener = tokio::net::TcpListener::bind(addr).await.expect("the address is free");
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client = Client::builder(TokioExecutor::new()).http2_only(h2).build::<_, Incoming>(connector);
    let instances: &'static [String] = instances.leak();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let _ = stream.set_nodelay(true);
        let client = client.clone();
        tokio::spawn(async move {
            let service = service_fn(|request| forward(client.clone(), request, instances));
            // A client that breaks off is its own business.
            let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn forward(
    client: Client<HttpConnector, Incoming>,
    mut request: Request<Incoming>,
    instances: &[String],
) -> Result<Answer, Infallible> {
    let key = request.headers().get("x-user-id").map_or(&[][..], |value| value.as_bytes());
    let hash = xxhash_rust::xxh3::xxh3_64(key);
    let instance =
        instances.iter().max_by_key(|instance| xxhash_rust::xxh3::xxh3_64_with_seed(instance.as_bytes(), hash));
    let path = request.uri().path_and_query().cloned();
    let parts = uri::Builder::new().scheme("http").authority(instance.expect("there are some").as_str());
    *request.uri_mut() = parts
        .path_and_query(path.unwrap_or_else(|| "/".parse().expect("a path")))
        .build()
        .unwrap_or_else(|_| Uri::default());
    for name in [header::CONNECTION, HeaderName::from_static("keep-alive"), header::UPGRADE, header::HOST] {
        request.headers_mut().remove(name);
    }
    *request.version_mut() = Version::HTTP_11;
    Ok(match client.request(request).await {
        Ok(answer) => answer.map(Either::Left),
        Err(error) => {
            let mut answer = Response::new(Either::Right(Full::from(error.to_string())));
            *answer.status_mut() = http::StatusCode::BAD_GATEWAY;
            answer
        }
    })
}
