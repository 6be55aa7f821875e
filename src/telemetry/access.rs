//! The access log: one line per sampled request and per error, written off the request path (REQUIREMENTS O4).
//!
//! A data thread hands over a finished [`AccessEntry`] through a bounded channel and never waits: when the writer (a thread
//! of its own, since the target may be a slow disk or a blocked pipe) cannot keep up, lines are dropped and counted.

use std::{
    fs::OpenOptions,
    io::{self, BufWriter, Write},
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, UNIX_EPOCH},
};

use prometheus_client::metrics::counter::Counter;
use serde::{Serialize, Serializer};
use sha2::{Digest, Sha256};

use crate::{
    config::{AccessLog, LogFormat},
    types::{InstanceId, Lane, PolicyVersion, ServiceName, VersionName, Wall},
};

/// How long the writer lets lines gather before it looks again: under load, a data thread then rarely has to wake it.
const GATHER: Duration = Duration::from_millis(10);
/// Lines that may wait for the writer.
const QUEUE: usize = 8_192;

/// One request, as it is logged. Names are those of REQUIREMENTS O4.
#[derive(Debug, Clone, Serialize)]
pub struct AccessEntry {
    /// When the request head was read.
    #[serde(serialize_with = "rfc3339")]
    pub time: Wall,
    /// The client's address.
    pub client: SocketAddr,
    /// Method as sent.
    pub method: String,
    /// Service; absent when the request names no known one.
    pub service: Option<ServiceName>,
    /// Path as sent, without the query.
    pub path: String,
    /// Status given to the client; absent when it went away first.
    pub status: Option<u16>,
    /// Bytes of the response body given to the client.
    pub bytes: u64,
    /// Request head to end of the response body.
    pub duration_ms: f64,
    /// What was hashed on the ring.
    pub route_key: Option<String>,
    /// Who was bucketed.
    pub user_id: Option<String>,
    /// Why the request is in its lane.
    pub gray_result: Option<&'static str>,
    /// Bucket, 0..=9999.
    pub bucket: Option<u16>,
    /// Hash of the route key, as 16 hexadecimal digits.
    #[serde(serialize_with = "hex64")]
    pub hash_value: Option<u64>,
    /// Instance that answered (or was tried last).
    pub target_instance: Option<InstanceId>,
    /// Its version.
    pub target_version: Option<VersionName>,
    /// Its lane.
    pub target_lane: Option<Lane>,
    /// Digest of the routing view, equal on every node with the same content, as 16 hexadecimal digits.
    #[serde(serialize_with = "hex64")]
    pub ring_version: Option<u64>,
    /// Version of the routing view here.
    pub snapshot_version: u64,
    /// Age of the routing view.
    pub snapshot_age_ms: u64,
    /// Version of the service's policy, `epoch.clock.author`.
    #[serde(serialize_with = "policy")]
    pub policy_version: Option<PolicyVersion>,
    /// Tries after the first.
    pub retry_count: u32,
    /// Why it left its decided lane.
    pub fallback_reason: Option<&'static str>,
    /// Reason of a response that the proxy made itself, or of an abort.
    pub error: Option<&'static str>,
}

fn rfc3339<S: Serializer>(time: &Wall, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&time_text(*time))
}

fn time_text(time: Wall) -> impl std::fmt::Display {
    humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(time.0))
}

fn hex64<S: Serializer>(value: &Option<u64>, to: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => to.collect_str(&format_args!("{value:016x}")),
        None => to.serialize_none(),
    }
}

fn policy<S: Serializer>(version: &Option<PolicyVersion>, to: S) -> Result<S::Ok, S::Error> {
    match version {
        Some(v) => to.collect_str(&format_args!("{}.{}.{}", v.epoch, v.clock, v.author)),
        None => to.serialize_none(),
    }
}

/// The way to the writer; cheap to clone.
#[derive(Debug, Clone)]
pub struct AccessSink {
    lines: SyncSender<Box<AccessEntry>>,
    /// A random number below this is logged; `u64::MAX` logs all.
    below: u64,
    dropped: Counter,
}

impl AccessSink {
    /// The same way with another share of requests (0.0 to 1.0).
    pub fn sampling(&self, share: f64) -> Self {
        Self { below: threshold(share), ..self.clone() }
    }

    /// Whether a request with this random number is logged.
    pub fn wants(&self, random: u64, error: bool) -> bool {
        error || self.below == u64::MAX || random < self.below
    }

    /// Hands a line over, or drops and counts it. Never waits.
    pub fn log(&self, entry: Box<AccessEntry>) {
        if self.lines.try_send(entry).is_err() {
            self.dropped.inc();
        }
    }
}

/// The writer's thread; ends when the last [`AccessSink`] is dropped.
#[derive(Debug)]
pub struct AccessLogger {
    thread: JoinHandle<()>,
    reopen: Arc<AtomicBool>,
}

type Target = Box<dyn Write + Send>;

impl AccessLogger {
    /// Opens the target and starts the writer. The error names the file.
    pub fn start(config: &AccessLog, dropped: Counter) -> io::Result<(Self, AccessSink)> {
        let target: Target = match &config.path {
            None => Box::new(io::stdout()),
            Some(path) => open(path)?,
        };
        let (lines, queue) = sync_channel(QUEUE);
        let reopen = Arc::new(AtomicBool::new(false));
        let writer = Writer {
            out: BufWriter::new(target),
            path: config.path.clone(),
            reopen: reopen.clone(),
            format: config.format,
            hash: config.hash_subject,
            lost: dropped.clone(),
        };
        let thread = thread::Builder::new().name("access-log".into()).spawn(move || writer.write_all(&queue))?;
        Ok((Self { thread, reopen }, AccessSink { lines, below: threshold(config.sample), dropped }))
    }

    /// From the next line on the file is opened anew: whoever rotates logs has moved it away. Standard output stays.
    pub fn reopen(&self) {
        self.reopen.store(true, Relaxed);
    }

    /// Waits until every line is written. All sinks must be dropped first.
    pub fn finish(self) {
        if self.thread.join().is_err() {
            tracing::error!("the access log's writer panicked; its last lines are lost");
        }
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)] // saturating on purpose
fn threshold(share: f64) -> u64 {
    (share.clamp(0.0, 1.0) * u64::MAX as f64) as u64
}

fn open(path: &Path) -> io::Result<Target> {
    let file = OpenOptions::new().create(true).append(true).open(path).map_err(|error| {
        let reason = format!("access log {}: {error}; create its directory or set access_log.path", path.display());
        io::Error::new(error.kind(), reason)
    })?;
    Ok(Box::new(file))
}

/// What the writer's thread owns.
struct Writer {
    out: BufWriter<Target>,
    path: Option<PathBuf>,
    reopen: Arc<AtomicBool>,
    format: LogFormat,
    hash: bool,
    lost: Counter,
}

impl Writer {
    fn write_all(mut self, queue: &Receiver<Box<AccessEntry>>) {
        let mut failing = false;
        while let Ok(first) = queue.recv() {
            if self.reopen.swap(false, Relaxed) {
                self.open_anew();
            }
            let mut next = Some(first);
            let mut lines = 0;
            // The line before may have been cut.
            let mut written = if failing { self.out.write_all(b"\n") } else { Ok(()) };
            while let Some(mut entry) = next {
                if self.hash {
                    hash_subject(&mut entry);
                }
                written = written.and(write_line(&mut self.out, &entry, self.format));
                lines += 1;
                next = queue.try_recv().ok();
            }
            match written.and(self.out.flush()) {
                Ok(()) => failing = false,
                Err(error) => {
                    // Some of them may be on the disk, the last one cut.
                    self.lost.inc_by(lines);
                    if !failing {
                        tracing::error!(%error, "the access log cannot be written; lines are lost until it can");
                    }
                    failing = true;
                    self.forget();
                }
            }
            #[expect(clippy::disallowed_methods, reason = "the writer's own thread: lines gather meanwhile")]
            thread::sleep(GATHER);
        }
    }

    /// What could not be written is not tried again with every line: it is counted as lost.
    fn forget(&mut self) {
        let nowhere: Target = Box::new(io::sink());
        let (target, _unwritten) = std::mem::replace(&mut self.out, BufWriter::new(nowhere)).into_parts();
        self.out = BufWriter::new(target);
    }

    /// Everything written so far was flushed; where opening fails, the old file goes on.
    fn open_anew(&mut self) {
        match self.path.as_deref().map(open) {
            None => {}
            Some(Ok(target)) => self.out = BufWriter::new(target),
            Some(Err(error)) => tracing::error!("the access log stays where it was: {error}"),
        }
    }
}

fn hash_subject(entry: &mut AccessEntry) {
    for field in [&mut entry.user_id, &mut entry.route_key].into_iter().flatten() {
        let digest = Sha256::digest(field.as_bytes());
        *field = digest[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    }
}

fn write_line(out: &mut impl Write, entry: &AccessEntry, format: LogFormat) -> io::Result<()> {
    match format {
        LogFormat::Json => serde_json::to_writer(&mut *out, entry)?,
        LogFormat::Text => write_text(out, entry)?,
    }
    out.write_all(b"\n")
}

/// `time client method service path status`, then `name=value` for what is present.
fn write_text(out: &mut impl Write, entry: &AccessEntry) -> io::Result<()> {
    let service = entry.service.as_ref().map_or("-", |s| s.as_str());
    let status = entry.status.map_or_else(|| "-".to_owned(), |s| s.to_string());
    // `{:?}` escapes what a client may have put there to forge a second line.
    write!(out, "{} {} {} {service} {:?} {status}", time_text(entry.time), entry.client, entry.method, entry.path)?;
    let fields = serde_json::to_value(entry)?;
    let Some(fields) = fields.as_object() else { return Ok(()) };
    const SHOWN: [&str; 6] = ["time", "client", "method", "service", "path", "status"];
    for (name, value) in fields.iter().filter(|(name, value)| !value.is_null() && !SHOWN.contains(&name.as_str())) {
        write!(out, " {name}={value}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> AccessEntry {
        AccessEntry {
            time: Wall(1_700_000_000_123),
            client: "127.0.0.1:5000".parse().unwrap(),
            method: "GET".into(),
            service: Some(ServiceName::new("orders").unwrap()),
            path: "/a\"b".into(),
            status: Some(200),
            bytes: 3,
            duration_ms: 1.5,
            route_key: Some("u1".into()),
            user_id: Some("u1".into()),
            gray_result: Some("range"),
            bucket: Some(7),
            hash_value: Some(255),
            target_instance: Some(InstanceId::new("orders-1").unwrap()),
            target_version: Some(VersionName::new("v1").unwrap()),
            target_lane: Some(Lane::stable()),
            ring_version: Some(1),
            snapshot_version: 4,
            snapshot_age_ms: 20,
            policy_version: Some(PolicyVersion { epoch: 1, clock: 2, author: "n1".into() }),
            retry_count: 0,
            fallback_reason: None,
            error: None,
        }
    }

    fn logged(format: LogFormat, hash_subject: bool) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("access.log");
        let config = AccessLog { sample: 1.0, format, hash_subject, path: Some(path.clone()) };
        let (logger, sink) = AccessLogger::start(&config, Counter::default()).unwrap();
        sink.log(Box::new(entry()));
        drop(sink);
        logger.finish();
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn a_json_line_has_every_name() {
        let line: serde_json::Value = serde_json::from_str(&logged(LogFormat::Json, false)).unwrap();
        for name in [
            "route_key",
            "user_id",
            "gray_result",
            "bucket",
            "hash_value",
            "target_instance",
            "target_version",
            "target_lane",
            "ring_version",
            "snapshot_version",
            "snapshot_age_ms",
            "policy_version",
            "retry_count",
            "fallback_reason",
        ] {
            assert!(line.get(name).is_some(), "{name} is missing in {line}");
        }
        assert_eq!(line["hash_value"], "00000000000000ff");
        assert_eq!(line["policy_version"], "1.2.n1");
        assert_eq!(line["time"], "2023-11-14T22:13:20.123Z");
    }

    #[test]
    fn a_text_line_cannot_be_forged_and_shows_what_is_there() {
        let line = logged(LogFormat::Text, false);
        assert!(line.starts_with("2023-11-14T22:13:20.123Z 127.0.0.1:5000 GET orders \"/a\\\"b\" 200 "), "{line}");
        assert!(line.contains(" target_instance=\"orders-1\"") && !line.contains("fallback_reason"), "{line}");
    }

    #[test]
    fn subjects_can_be_hashed() {
        let line = logged(LogFormat::Json, true);
        assert!(!line.contains("\"u1\"") && line.contains("\"user_id\":\""), "{line}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn lines_that_a_full_disk_takes_no_more_are_counted() {
        let config =
            AccessLog { sample: 1.0, format: LogFormat::Text, hash_subject: false, path: Some("/dev/full".into()) };
        let dropped = Counter::default();
        let (logger, sink) = AccessLogger::start(&config, dropped.clone()).unwrap();
        (0..3).for_each(|_| sink.log(Box::new(entry())));
        drop(sink);
        logger.finish();
        assert_eq!(dropped.get(), 3);
    }

    #[test]
    fn errors_are_always_logged_and_a_sample_of_the_rest() {
        let config = AccessLog { sample: 0.25, format: LogFormat::Json, hash_subject: false, path: None };
        let (_logger, sink) = AccessLogger::start(&config, Counter::default()).unwrap();
        assert!(sink.wants(u64::MAX, true) && !sink.wants(u64::MAX, false) && sink.wants(u64::MAX / 5, false));
    }
}
