//! Checks against real sockets.

use std::sync::{
    Arc,
    atomic::{AtomicU16, Ordering::Relaxed},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    time::timeout,
};

use super::*;

fn check(kind: CheckKind) -> Check {
    let interval = Duration::from_millis(200);
    Check { kind, interval, timeout: Duration::from_millis(100), load: LoadSource::None, rise: 2, fall: 2 }
}

fn target(kind: CheckKind, addr: SocketAddr) -> Target {
    Target { id: InstanceId::new("app-1").unwrap(), authority: addr.to_string(), check: check(kind) }
}

/// Starts checks whose reports arrive on a channel.
fn watched(targets: Vec<Target>) -> (Probes, mpsc::UnboundedReceiver<(InstanceId, Health)>) {
    let (tx, rx) = mpsc::unbounded_channel();
    let report = move |id, heard| {
        std::future::ready(match heard {
            Heard::Health(health) => tx.send((id, health)).is_ok(),
            Heard::Load(_) | Heard::InFlight(_) | Heard::Result(_) => true,
        })
    };
    (start_with(targets, report), rx)
}

async fn next(rx: &mut mpsc::UnboundedReceiver<(InstanceId, Health)>) -> Health {
    timeout(Duration::from_secs(5), rx.recv()).await.expect("a report in time").expect("probes run").1
}

/// An application that answers every request with the status in the cell; 0 closes without an answer.
async fn app(status: Arc<AtomicU16>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let status = status.load(Relaxed);
            let _ = stream.read(&mut [0; 1024]).await;
            if status > 0 {
                let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n");
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        }
    });
    addr
}

#[tokio::test]
async fn an_http_application_passes_fails_and_passes_again() {
    let status = Arc::new(AtomicU16::new(204));
    let addr = app(status.clone()).await;
    let began = Instant::now();
    let (_probes, mut rx) = watched(vec![target(CheckKind::Http("/health".into()), addr)]);
    assert_eq!(next(&mut rx).await, Health::Passing);
    assert!(began.elapsed() < Duration::from_millis(1_000), "start-up took {:?}", began.elapsed());
    for (bad, good) in [(500, 200), (0, 302)] {
        status.store(bad, Relaxed);
        assert_eq!(next(&mut rx).await, Health::Critical);
        status.store(good, Relaxed);
        assert_eq!(next(&mut rx).await, Health::Passing);
    }
}

#[tokio::test]
async fn a_hanging_application_is_critical() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (probes, mut rx) = watched(vec![target(CheckKind::Tcp, addr)]);
    assert_eq!(next(&mut rx).await, Health::Passing);
    // The listener still accepts into its backlog, so TCP passes; HTTP gets no answer.
    probes.check(target(CheckKind::Http("/".into()), addr));
    assert_eq!(next(&mut rx).await, Health::Critical, "registered anew, it has to pass first");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(rx.try_recv().is_err());
}

#[tokio::test]
async fn a_closed_port_is_critical_and_a_forgotten_instance_is_silent() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (probes, mut rx) = watched(vec![target(CheckKind::Tcp, addr)]);
    assert_eq!(next(&mut rx).await, Health::Passing);
    drop(listener);
    assert_eq!(next(&mut rx).await, Health::Critical);
    probes.forget(&InstanceId::new("app-1").unwrap());
    let _listener = TcpListener::bind(addr).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(rx.try_recv().is_err());
}

#[tokio::test]
async fn without_a_check_it_passes_at_once() {
    let (_probes, mut rx) = watched(vec![target(CheckKind::None, "127.0.0.1:1".parse().unwrap())]);
    assert_eq!(next(&mut rx).await, Health::Passing);
}

#[tokio::test]
async fn why_a_check_fails_is_told_once_until_it_changes() {
    let status = Arc::new(AtomicU16::new(500));
    let addr = app(status.clone()).await;
    let (tx, mut rx) = mpsc::unbounded_channel();
    let report = move |_, heard| std::future::ready(tx.send(heard).is_ok());
    let _probes = start_with(vec![target(CheckKind::Http("/health".into()), addr)], report);
    let mut next =
        async || timeout(Duration::from_secs(5), rx.recv()).await.expect("a report in time").expect("probes run");
    assert_eq!(next().await, Heard::Result(Err("GET /health answered 500".into())));
    status.store(404, Relaxed);
    assert_eq!(next().await, Heard::Result(Err("GET /health answered 404".into())));
    status.store(200, Relaxed);
    assert_eq!(next().await, Heard::Result(Ok(())));
    assert_eq!(next().await, Heard::Health(Health::Passing));
}

#[test]
fn with_the_defaults_a_dead_application_is_known_everywhere_within_two_seconds() {
    let (refusing, hanging) = worst(&Check::default()).expect("checked");
    assert!(refusing < Duration::from_millis(1_500) && refusing < hanging, "{refusing:?} {hanging:?}");
    assert_eq!(worst(&check(CheckKind::None)), None);
}

/// Also of an instance that is not checked.
#[tokio::test]
async fn what_is_in_flight_is_looked_at_with_every_check() {
    for kind in [CheckKind::None, CheckKind::Tcp] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut asked = target(kind, listener.local_addr().unwrap());
        asked.check.load = LoadSource::InFlight(50);
        let (tx, mut rx) = mpsc::unbounded_channel();
        let _probes = start_with(vec![asked], move |_, heard| std::future::ready(tx.send(heard).is_ok()));
        let mut looks = 0;
        while looks < 2 {
            let heard =
                timeout(Duration::from_secs(5), rx.recv()).await.expect("a report in time").expect("probes run");
            looks += u32::from(heard == Heard::InFlight(50));
        }
    }
}

#[tokio::test]
async fn a_health_reply_says_how_busy_the_application_is() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 1024]).await;
            let answer = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nX-Lanemesh-Load: 350/s\r\n\r\n";
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    let mut asked = target(CheckKind::Http("/health".into()), addr);
    asked.check.load = LoadSource::Check(Some(500));
    let (tx, mut rx) = mpsc::unbounded_channel();
    let _probes = start_with(vec![asked], move |_, heard| std::future::ready(tx.send(heard).is_ok()));
    let mut heard = Vec::new();
    while heard.len() < 4 {
        heard.push(timeout(Duration::from_secs(5), rx.recv()).await.expect("a report in time").expect("probes run"));
    }
    assert!(heard.contains(&Heard::Load(Some(0.7))) && heard.contains(&Heard::Health(Health::Passing)), "{heard:?}");
}
