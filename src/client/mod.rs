//! The way to a sidecar's admin API: one HTTP/1.1 connection per question, plain hyper, a deadline on everything.
//!
//! Finds the sidecar by flag, environment or default, and the write token by flag, environment or the path that the sidecar
//! itself tells.

mod failure;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::{
    net::TcpStream,
    time::{Instant, timeout, timeout_at},
};

pub use failure::{Exit, Failure, clean_lines};

use crate::{admin::ErrorBody, agent::NodeInfo};

/// Where a sidecar is asked when nothing else is said.
pub const DEFAULT_ADMIN: &str = "127.0.0.1:15000";
/// Environment variable that names the sidecar.
pub const ADMIN_VARIABLE: &str = "LANEMESH_ADMIN";
/// Environment variable that holds the write token itself.
pub const TOKEN_VARIABLE: &str = "LANEMESH_TOKEN";

/// A command's whole time with the sidecar; with start and output it ends within 5 s.
const COMMAND_DEADLINE: Duration = Duration::from_millis(4600);
const CONNECT_DEADLINE: Duration = Duration::from_secs(2);
/// Largest answer read, bytes: 5,000 instances of 8 KiB.
const MAX_ANSWER: usize = 64 * 1024 * 1024;

/// Which sidecar to ask.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Sidecar {
    /// Admin address of the sidecar [env: LANEMESH_ADMIN] [default: 127.0.0.1:15000]
    #[arg(long, value_name = "HOST:PORT", env = ADMIN_VARIABLE, hide_env = true)]
    pub admin: Option<String>,
    /// File with the write token [env: LANEMESH_TOKEN_FILE, or LANEMESH_TOKEN with the token itself] [default: as the sidecar
    /// tells]
    #[arg(long, value_name = "FILE", env = "LANEMESH_TOKEN_FILE", hide_env = true)]
    pub token_file: Option<PathBuf>,
}

impl Sidecar {
    /// A client for one command; its time starts now.
    pub fn client(&self) -> Result<Client, Failure> {
        // A variable that is set but empty counts as not set.
        let address = self.admin.as_deref().filter(|address| !address.is_empty()).unwrap_or(DEFAULT_ADMIN);
        let token = match self.token_file.as_deref().filter(|file| !file.as_os_str().is_empty()) {
            Some(file) => Some(read_token(file)?),
            None => std::env::var(TOKEN_VARIABLE).ok().filter(|token| !token.is_empty()),
        };
        Client::new(address, token)
    }
}

/// One command's way to a sidecar.
pub struct Client {
    address: String,
    token: Option<String>,
    deadline: Instant,
}

impl Client {
    /// For `HOST:PORT` (or `http://HOST:PORT`); without a token, orders read the file that the sidecar names.
    pub fn new(address: &str, token: Option<String>) -> Result<Self, Failure> {
        let bare = address.strip_prefix("http://").unwrap_or(address).trim_end_matches('/');
        let port = bare.rsplit_once(':').and_then(|(host, port)| port.parse::<u16>().ok().filter(|_| !host.is_empty()));
        let usable = port.is_some() && bare.bytes().all(|c| c.is_ascii_graphic() && !b"/@?#".contains(&c));
        if !usable {
            return Err(Failure::new(Exit::Usage, format!("`{address}` is not an admin address"))
                .cure(format!("write HOST:PORT, as in `--admin {DEFAULT_ADMIN}`")));
        }
        Ok(Self { address: bare.to_owned(), token, deadline: Instant::now() + COMMAND_DEADLINE })
    }

    /// The address that is asked.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Starts the command's time anew; for commands that were told to wait.
    pub fn renew(&mut self) {
        self.deadline = Instant::now() + COMMAND_DEADLINE;
    }

    /// Asks; the answer as it came.
    pub async fn get(&self, path: &str) -> Result<Value, Failure> {
        self.exchange(Method::GET, path, None, self.token.as_deref()).await
    }

    /// Orders; finds the token first where it was not given.
    pub async fn order(&mut self, method: Method, path: &str, body: &impl Serialize) -> Result<Value, Failure> {
        if self.token.is_none() {
            let info: NodeInfo = parse(self.get("/v1/info").await?)?;
            self.token = Some(read_token(Path::new(&info.token_file))?);
        }
        let body = serde_json::to_vec(body).map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
        self.exchange(method, path, Some(body), self.token.as_deref()).await
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
        token: Option<&str>,
    ) -> Result<Value, Failure> {
        match timeout_at(self.deadline, self.send(method, path, body, token)).await {
            Ok(answer) => answer,
            Err(_) => Err(Failure::new(
                Exit::Unreachable,
                format!(
                    "the sidecar at {} does not answer in time ({})",
                    self.address,
                    humantime::format_duration(COMMAND_DEADLINE)
                ),
            )
            .cure("it is stopped, overloaded, or something else listens there: see its log")),
        }
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
        token: Option<&str>,
    ) -> Result<Value, Failure> {
        let stream = self.connect().await?;
        let broken = |error: hyper::Error| {
            Failure::new(Exit::Unreachable, format!("the sidecar at {} broke off: {error}", self.address))
        };
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, &self.address);
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let request = request
            .body(Full::new(Bytes::from(body.unwrap_or_default())))
            .map_err(|error| Failure::new(Exit::Usage, format!("that can't be asked for: {error}")))?;
        let exchange = async move {
            let response = sender.send_request(request).await.map_err(broken)?;
            let status = response.status();
            let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await.map_err(|error| {
                Failure::new(Exit::Unreachable, format!("the answer of {} is not complete: {error}", self.address))
            })?;
            self.understand(status, &body.to_bytes())
        };
        // The connection does the reading and writing. It ends when the sender, owned by the exchange, is gone: nothing is
        // left running.
        let (answer, _) = tokio::join!(exchange, connection);
        answer
    }

    async fn connect(&self) -> Result<TcpStream, Failure> {
        let reason = match timeout(CONNECT_DEADLINE, TcpStream::connect(&self.address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no connection in time".to_owned(),
        };
        Err(Failure::new(Exit::Unreachable, format!("no sidecar answers at {}: {reason}", self.address))
            .cure("is `lanemesh run` running? Name another one with --admin HOST:PORT or LANEMESH_ADMIN"))
    }

    fn understand(&self, status: StatusCode, body: &[u8]) -> Result<Value, Failure> {
        let foreign = || {
            let error =
                format!("what answers at {} is not a lanemesh admin API (status {})", self.address, status.as_u16());
            // Whatever answers, no sidecar does.
            Failure::new(Exit::Unreachable, error).cure("name the sidecar's admin port with --admin HOST:PORT")
        };
        if status.is_success() {
            return serde_json::from_slice(body).map_err(|_| foreign());
        }
        let ErrorBody { error, cure } = serde_json::from_slice(body).map_err(|_| foreign())?;
        let exit = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Exit::NotAllowed,
            StatusCode::NOT_FOUND => Exit::NotFound,
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => Exit::Unreachable,
            _ => Exit::Failed,
        };
        Err(Failure { exit, error, cure })
    }
}

/// An answer as the type that it should be; an answer of another version may not be one.
pub fn parse<T: DeserializeOwned>(answer: Value) -> Result<T, Failure> {
    serde_json::from_value(answer).map_err(|error| {
        Failure::new(Exit::Failed, format!("the sidecar's answer is not understood: {error}"))
            .cure("the sidecar may be of another version (`lanemesh info`); `--json` shows the answer as it came")
    })
}

/// A path segment or query value, percent-encoded (RFC 3986: everything but the unreserved characters).
pub fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(byte.into()),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// `path?name=value&...` with what is given.
pub fn with_query(path: &str, query: &[(&str, Option<&str>)]) -> String {
    let given = query.iter().filter_map(|(name, value)| Some(format!("{name}={}", encode((*value)?))));
    let query = given.collect::<Vec<_>>().join("&");
    if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") }
}

fn read_token(path: &Path) -> Result<String, Failure> {
    let refused = |reason: String| {
        Failure::new(Exit::NotAllowed, format!("the write token `{}` is not readable: {reason}", path.display())).cure(
            "run this as the user that runs the sidecar, on its machine (`sudo -u USER lanemesh ...`), or give the token by \
             --token-file or LANEMESH_TOKEN",
        )
    };
    let text = std::fs::read_to_string(path).map_err(|error| refused(error.to_string()))?;
    let token = text.trim();
    if token.is_empty() || !token.bytes().all(|c| c.is_ascii_graphic()) {
        return Err(refused("it does not hold a token".to_owned()));
    }
    Ok(token.to_owned())
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    async fn failure_of(client: &Client) -> Failure {
        client.get("/v1/members").await.unwrap_err()
    }

    #[test]
    fn addresses_are_host_and_port() {
        for (text, bare) in [
            ("127.0.0.1:15000", "127.0.0.1:15000"),
            ("http://localhost:1/", "localhost:1"),
            ("[::1]:15000", "[::1]:15000"),
            ("sidecar.example:15000", "sidecar.example:15000"),
        ] {
            assert_eq!(Client::new(text, None).unwrap().address(), bare);
        }
        for text in
            ["", "localhost", "15000", ":15000", "https://a:1", "a:1/v1", "a b:1", "a:99999", "u@a:1", "a:1\r\nx"]
        {
            let failure = Client::new(text, None).err().unwrap_or_else(|| panic!("{text:?} was taken"));
            assert!(failure.exit == Exit::Usage && failure.cure.unwrap().contains(DEFAULT_ADMIN), "{text}");
        }
    }

    #[test]
    fn queries_are_encoded() {
        assert_eq!(encode("a-b_c.d~E9"), "a-b_c.d~E9");
        assert_eq!(encode("a b/&=?#%ä"), "a%20b%2F%26%3D%3F%23%25%C3%A4");
        assert_eq!(with_query("/x", &[("a", None), ("b", Some("")), ("c", Some("1 2"))]), "/x?b=&c=1%202");
        assert_eq!(with_query("/x", &[("a", None)]), "/x");
    }

    #[tokio::test]
    async fn nobody_there_names_the_address_and_the_cure() {
        // Bound and dropped: nothing listens on it.
        let addr = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
        let failure = failure_of(&Client::new(&addr, None).unwrap()).await;
        assert!(failure.exit == Exit::Unreachable && failure.error.contains(&addr), "{failure}");
        assert!(failure.cure.unwrap().contains("is `lanemesh run` running?"));
    }

    /// As a stopped process: the kernel accepts, nobody answers.
    #[tokio::test]
    async fn a_sidecar_that_hangs_does_not_hang_the_command() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let mut client = Client::new(&addr, None).unwrap();
        client.deadline = Instant::now() + Duration::from_millis(50);
        let failure = failure_of(&client).await;
        assert!(failure.exit == Exit::Unreachable && failure.error.contains("does not answer in time"), "{failure}");
    }

    #[tokio::test]
    async fn what_is_no_sidecar_is_told_apart() {
        for (answer, error) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", "is not a lanemesh admin API"),
            ("HTTP/1.1 404 Not Found\r\ncontent-length: 5\r\n\r\nhello", "is not a lanemesh admin API"),
            ("SSH-2.0-OpenSSH_9.6\r\n", "broke off"),
            ("HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n[", "is not complete"),
            ("", "broke off"),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let addr = listener.local_addr().unwrap().to_string();
            let server = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 1024];
                let _ = stream.read(&mut request).await;
                let _ = stream.write_all(answer.as_bytes()).await;
            };
            let client = Client::new(&addr, None).unwrap();
            let (failure, ()) = tokio::join!(failure_of(&client), server);
            assert!(failure.error.contains(error), "{answer:?}: {failure}");
        }
    }
}
