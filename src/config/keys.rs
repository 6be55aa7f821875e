//! Every key, once: where it stands, what it takes, its default, its meaning. Checks, defaults, environment names and the
//! printed reference come from this table.

use std::time::Duration;

/// Environment variables of the configuration begin with this.
pub const ENVIRONMENT_PREFIX: &str = "LANEMESH_";

/// Variables with the prefix that are not keys: the command line and the tests read them, the configuration leaves them alone.
pub const RESERVED_ENVIRONMENT: &[&str] = &[
    "LANEMESH_CONFIG",
    "LANEMESH_ADMIN",
    "LANEMESH_TOKEN",
    "LANEMESH_TOKEN_FILE",
    "LANEMESH_JSON",
    "LANEMESH_NO_SKIP",
];

/// Most instances that one sidecar announces.
pub const MAX_INSTANCES: usize = 10_000;

/// Most services that one sidecar has rules for.
pub const MAX_SERVICES: usize = 10_000;

/// One key of the configuration.
pub(super) struct Key {
    /// Section it stands in: empty at the top, `service` for every `[service.NAME]`, `instance` for every `[[instance]]`.
    pub(super) section: &'static str,
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) absent: Absent,
    /// For people; paragraphs are wrapped where printed.
    pub(super) about: &'static str,
}

/// What a key takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Kind {
    /// A name of the mesh (node, lane, ...); its type checks it.
    Name,
    Text,
    Path,
    Flag,
    /// Inclusive range.
    Whole(u64, u64),
    /// 0.0 to 1.0.
    Share,
    /// Inclusive range.
    Span(Duration, Duration),
    /// `IP:port`.
    Address,
    Choice(&'static [&'static str]),
    /// Several texts.
    Texts,
    /// A table of texts; in the environment `a=b,c=d`.
    Table,
}

/// What holds when a key is not given.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Absent {
    /// This, written as in an environment variable.
    Is(&'static str),
    /// Nothing fixed: an example, and what then holds.
    Unset(&'static str, &'static str),
    /// It has to be given: an example.
    Needed(&'static str),
}

impl Key {
    /// Dotted key with `NAME` or `N` where the file has a name or a number.
    pub(super) fn dotted(&self) -> String {
        match self.section {
            "" => self.name.to_owned(),
            "service" => format!("service.NAME.{}", self.name),
            "instance" => format!("instance.N.{}", self.name),
            section => format!("{section}.{}", self.name),
        }
    }
}

/// The key of this name in this section.
/// What stands in `routing` may stand in `service` too.
pub(super) fn find(section: &str, name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name && belongs(key, section))
}

/// Whether a key may stand in a section.
pub(super) fn belongs(key: &Key, section: &str) -> bool {
    key.section == section || (section == "service" && key.section == "routing")
}

/// Sections in the order of the reference, with what each is for.
pub(super) const SECTIONS: &[(&str, &str)] = &[
    ("", "Who and where this sidecar is."),
    ("identity", "Certificate files (PEM), as `lanemesh ca issue` writes them."),
    ("gossip", "The mesh side: QUIC over UDP, between sidecars."),
    ("proxy", "The application side: one loopback port for every service."),
    ("proxy.timeouts", "Time limits of the data path."),
    (
        "routing",
        "How requests are spread over a service's instances and kept away from sick ones. Every key of this section may stand \
         in [service.NAME] as well, for that service alone.",
    ),
    ("admin", "The admin API: health, readiness, metrics, and the API that the command line uses."),
    ("log", "What the sidecar says about itself, on standard error."),
    ("access_log", "One line per request."),
    ("shutdown", "What happens between SIGTERM and exit."),
    ("service", "This sidecar's rules for one service; one section per service."),
    ("instance", "One block per instance that this sidecar announces. None: a pure client of the mesh."),
];

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}
const fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

macro_rules! keys {
    ($($section:literal: { $($name:literal $kind:expr, $default:expr, $about:literal;)* })*) => {
        &[$($(Key { section: $section, name: $name, kind: $kind, absent: $default, about: $about },)*)*]
    };
}

use Absent::{Is, Needed, Unset};
use Kind::{Address, Choice, Flag, Name, Path, Share, Span, Table, Text, Texts, Whole};

pub(super) const KEYS: &[Key] = keys! {
    "": {
        "node" Name, Unset("orders-1", "the name in the certificate"),
            "Node id, stable over restarts (a pod's name, say). Must be the name in the certificate.";
        "mesh" Name, Unset("demo", "the mesh in the certificate"),
            "Mesh name. Sidecars of other meshes are refused inside the handshake.";
        "data_dir" Path, Is("./lanemesh-data"),
            "Directory for the generation, known peers and the write token; made when absent. Relative paths, here and below, \
             start at the working directory.";
        "env" Name, Is("default"),
            "Environment of this sidecar's instances and requests. Requests never cross it.";
        "region" Name, Is("default"), "Region of this sidecar's instances.";
        "zone" Name, Is("default"), "Availability zone of this sidecar's instances.";
    }
    "identity": {
        "certificate" Path, Unset("identity/orders-1.pem", "identity/NODE.pem by the key `node`, else identity/node.pem"),
            "This node's certificate.";
        "key" Path, Unset("identity/orders-1-key.pem", "identity/NODE-key.pem by the key `node`, else identity/node-key.pem"),
            "Its private key (PKCS #8); should be readable by its owner only.";
        "ca" Path, Is("identity/ca.pem"), "Authorities whose certificates are trusted.";
    }
    "gossip": {
        "bind" Address, Is("0.0.0.0:7946"), "UDP address to bind; port 0 lets the system choose.";
        "advertise" Address, Unset("10.0.0.5:7946", "the bound address; bound to every interface, the one that leads to the first seed"),
            "Address that peers use. Needed behind address translation, and on a host with several networks; port 0 here means \
             the bound port.";
        "seeds" Texts, Is(""),
            "`host:port` of any members, in any order, this one too. Names are resolved again while a seed does not answer, and \
             a seed that is not a member is tried for as long as the sidecar lives. Empty: the first of its mesh, or found by \
             others.";
        "profile" Choice(&["lan", "wan"]), Is("lan"),
            "Timers: `lan` for round trips of a few milliseconds, `wan` for some hundred. `wan` takes three times as long to \
             notice a death (`config check` prints the times), sends a third of the probes, and holds nobody for dead who stands \
             still for less than 7 s.";
        "coalesce" Span(ms(0), s(2)), Is("300ms"),
            "After a new routing snapshot, further changes wait so long for company: fewer snapshots while much changes, against \
             news that is so much later. What takes an instance out of traffic (death, drain, failed check, weight 0, policy, \
             rollback) never waits.";
    }
    "proxy": {
        "bind" Address, Is("127.0.0.1:15001"),
            "TCP address where applications send requests for any service: by `Host`, or as `http_proxy`. Anybody who reaches \
             it reaches the mesh, so keep it on loopback.";
        "ports" Table, Unset("{ orders = \"127.0.0.1:18001\" }", "no dedicated port"),
            "Dedicated ports: all that comes in there is for one service.";
        "tcp_ports" Table, Unset("{ redis = \"127.0.0.1:16379\" }", "no TCP port"),
            "Dedicated ports for plain TCP: every connection is carried to an instance of one service, whatever is spoken in it.";
        "workers" Whole(0, 1024), Is("0"), "Data-path threads. 0: one per core, at most 2.";
        "expose_decision" Flag, Is("false"),
            "Adds `x-lanemesh-*` response headers that tell instance, version, lane and reason.";
        "lane_header" Text, Is("x-lane"),
            "Header in which an allow-listed subject may name a lane. It is taken off everybody else's requests.";
        "max_head_bytes" Whole(8_192, 1_048_576), Is("65536"), "Largest request head, in bytes; larger is answered 431, or 414 where the request line alone is larger (of which no more than 65500 bytes are ever taken).";
        "max_headers" Whole(16, 4_096), Is("128"), "Most headers of a request; more is answered 431.";
        "max_connections" Whole(1, 1_000_000), Is("10000"), "Most client connections at a time; further ones are answered 503 and closed. Lowered at start to what the limit on open \
             files has room for.";
        "max_requests_per_instance" Whole(1, 1_000_000), Is("4096"),
            "Most requests (tunnels among them) under way from this sidecar at one instance. A full instance is passed over; when \
             all of the lane are full, the answer is 503 at once.";
        "connect_ahead" Whole(0, 1_000), Is("16"),
            "When instances come into rotation, each data thread opens a connection to so many of them, if it has lately kept one to \
             another instance of the service: their first users do not wait for handshakes. 0: none.";
        "max_replay_bytes" Whole(0, 1_048_576), Is("65536"),
            "Largest request body of known length that is kept, so that the request can be sent again. Larger ones are streamed, \
             and such a request is not repeated once a byte was sent.";
        "h2_max_streams" Whole(1, 10_000), Is("256"),
            "Most requests at a time on one HTTP/2 connection of a client; its library waits with further ones. Each may have \
             64 KiB under way that no instance has taken.";
        "max_retries" Whole(0, 10), Is("2"),
            "Most retries of a safe request after something of it was sent. Refused connections do not count: nothing was sent.";
        "subject" Texts, Is("header:x-user-id"),
            "Who a request is from: `header:NAME` or `cookie:NAME`; several are joined and must all be present. A service's own \
             rule and its policy come first.";
    }
    "proxy.timeouts": {
        "connect" Span(ms(10), s(60)), Unset("1s", "1s, or per_try where that is shorter"), "To connect to an instance. At most per_try.";
        "per_try" Span(ms(10), s(3_600)), Unset("5s", "a third of total, at most 5s"),
            "One try, up to the response head. At most a third of total, so that two further instances get their chance.";
        "silence" Span(ms(10), s(3_600)), Is("1s"),
            "An instance that has answered nothing at all for this long while two or more requests waited is taken to hang: those that \
             may be repeated go to another one. An instance that answers others, or has one request only, is waited for up to \
             per_try.";
        "total" Span(ms(30), s(10_800)), Is("15s"), "All tries of one request, up to the response head.";
        "idle" Span(ms(100), s(86_400)), Is("60s"),
            "Silence on a body (or, both ways, on a gRPC stream) or on a kept-open client connection.";
        "tunnel_idle" Span(ms(100), s(604_800)), Is("1h"),
            "Silence both ways in a tunnel (WebSocket and other upgrades, CONNECT, TCP ports). Once one side has finished sending, \
             `idle` holds where it is shorter.";
        "pool_idle" Span(ms(0), s(3_600)), Is("3s"),
            "How long an unused HTTP/1.1 connection to an instance is kept. Applications close idle connections too (many after 5s), and \
             a request that meets the close has to be sent again: stay below theirs.";
        "h2_ping" Span(s(1), s(3_600)), Is("310s"),
            "Silence on an HTTP/2 connection to an instance, with requests under way, after which it has to answer a PING. gRPC \
             servers close connections that ping more often than every five minutes, unless told otherwise.";
        "head" Span(ms(100), s(600)), Is("10s"), "A request head, from its first byte to its last.";
        "body" Span(ms(100), s(3_600)), Is("30s"),
            "A request body that is kept (at most max_replay_bytes), from its head to its last byte. Larger ones may take any time; \
             `idle` limits their silence.";
    }
    "routing": {
        "breaker_failures" Whole(0, 16), Is("3"),
            "So many failures of an instance's last breaker_of results open its breaker: it is passed over, and its users go to \
             the next instance in their failover order. 0 leaves this rule out. An instance whose ordinary rate of errors is some \
             per cent wants more.";
        "breaker_of" Whole(1, 16), Is("6"), "How many results breaker_failures looks at.";
        "breaker_window" Span(ms(100), s(600)), Is("10s"), "Failures are forgotten after this; also the window of breaker_share.";
        "breaker_share" Share, Is("0.5"),
            "This share of failures in the window opens the breaker too, when there were breaker_volume results or more.";
        "breaker_volume" Whole(0, 100_000), Is("20"), "Fewest results in the window for breaker_share. 0 leaves that rule out.";
        "breaker_open" Span(ms(100), s(3_600)), Is("10s"),
            "How long an opened breaker keeps an instance away, give or take a fifth. Then one request of its own users tries it; \
             if that fails, or it fails again soon after, this doubles. It gets shorter again only by successes.";
        "breaker_open_max" Span(ms(100), s(86_400)), Is("5m"), "Up to where breaker_open doubles.";
        "breaker_ramp" Span(ms(0), s(3_600)), Is("20s"),
            "After a successful try, the time in which its users come back: a tenth of them at once, the rest evenly.";
        "breaker_slow" Whole(2, 1_000), Unset("5", "slowness is no failure"),
            "An instance whose answers usually take so many times what its lane's usually take (and 5ms more) is kept away like one that \
             fails, and comes back when its answer to a try is not as slow any more. Six such answers in a row, over 3s or more, \
             say as much where few are asked for. For services whose keys cost about the same; where they do not, an instance may be slow for its keys' sake.";
        "breaker_max_share" Share, Is("0.5"),
            "Largest share of a lane's instances that breakers keep away at a time. One instance always stays. An instance that \
             may not be kept away is used as it is, and counted. While others serve, instances that are proved to have nothing to give \
             (nothing but failures for a window, failed tries after an open time) are kept away beyond it; the share is then of the rest.";
        "breaker_counts" Texts, Is("connect,reset,timeout,500,502,503,504,grpc"),
            "What counts as an instance's failure: connect (no connection), reset (it broke before the response), timeout (no \
             response in time), 5xx, statuses from 500 to 599, how a gRPC call ends, by name or number \
             (grpc:unavailable, grpc:14), or grpc for unknown, internal, unavailable and data_loss. With 500 in it, requests that can \
             be repeated go on to the next instance after one, as after 502, 503 and 504.";
        "retry_share" Share, Is("0.2"),
            "Budget of this sidecar for retries after something was sent, as a share of the service's requests. Refused \
             connections are free: nothing was sent.";
        "retries_per_second" Whole(0, 10_000), Is("1"), "Retries allowed beyond that, for services with few requests.";
        "fallback_on" Texts, Is("absent,unhealthy,draining,sick"),
            "For which causes requests leave their lane, as far as the service's policy lets their methods: absent (it has no \
             instance), unhealthy, draining (or at weight 0), sick (breakers would keep all of it away; without this cause, half of \
             it stays in use), saturated (each of its instances has proxy.max_requests_per_instance from here; without this cause, \
             it takes nothing from stable).";
        "fallback_hold" Span(ms(0), s(3_600)), Is("5s"),
            "How long a lane that had nobody must hold before its users go back to it; then they do so within slow_start.";
        "fallback_per_second" Whole(0, 4_294_967_295), Unset("200", "any number"),
            "Most requests a second that leave their lane, so that a dead canary does not drown stable. Further ones are answered \
             503, fallback_limit.";
        "fallback_capacity" Share, Is("0.8"),
            "Requests that leave their lane may fill the one in its place up to this share of what its instances announce as `capacity`, \
             beside its own. Counted are both lanes' capacity and `load` from before (who tells no load uses half). With room for \
             some of the lane's users only, it is always the same who find it; the others are answered 503, fallback_limit, or \
             stay where they are if their lane is merely sick. No limit where an instance of either lane announces no capacity.";
        "prefer_zone" Flag, Is("false"),
            "Requests stay in this sidecar's zone while it has enough healthy instances for its part of the lane (what is known \
             of the lane over the number of zones, of which 5/7 are enough), then in its region, then go anywhere. Below that, a share \
             of the keys in proportion stays. The same user may then have another instance in another zone.";
        "regions" Texts, Is(""),
            "Requests go to instances of these regions only, whatever happens: for what may not leave them. None named: to any region.";
        "balance" Choice(&["ring", "keyless-least-loaded", "least-loaded"]), Is("ring"),
            "Which instance of its lane a request goes to: by its key's place on the ring; the same, but without a key the one of \
             two with fewer requests in flight from this sidecar; or always that one, for services that keep nothing of their users.";
        "bounded_load" Whole(100, 1_000), Unset("125", "no bound"),
            "Most of this sidecar's requests in flight at one instance, in per cent of what it would have if all of its lane had \
             theirs by weight (fewer than 5 always go); further ones go on in failover order. For services whose keys differ much in load.";
        "silent_after" Span(ms(0), s(60)), Is("100ms"),
            "Where three requests or more have been sent to an instance since it last answered one, and the first of them so long ago (and \
             three times as long as nearly all of its answers take), requests that could not be repeated, such as POST, go on in \
             failover order until it answers: they would be lost if it hangs. 0ms: they go there all the same.";
        "spread" Texts, Is(""),
            "Keys that are too much for one instance, each with a number, such as \"tenant-7=4\": its requests are spread over the first \
             so many (2 to 64) instances of its failover order.";
        "pin" Texts, Is(""),
            "Keys that belong to named instances, such as \"tenant-7=orders-3\" or \"tenant-7=orders-3+orders-4\": its requests go to \
             the first of them that takes any, in the ring's order, and only then on in failover order. Lanes are kept: where none of \
             them serves the request's lane, the key is an ordinary one. Give every sidecar the same; a key that is spread as well is \
             spread over these first.";
        "spread_above" Whole(1, 1_000_000), Unset("500", "no key"),
            "A key with more requests a second than this, at this sidecar, is spread as well, until some seconds after.";
        "spread_over" Whole(2, 64), Is("4"), "Over how many instances keys above spread_above are spread.";
        "signals" Flag, Is("true"),
            "Tells the other sidecars when requests to an instance fail here, and believes them: where at least two of them together \
             saw what would open a breaker, the instance is kept away as if it had failed here. Who accuses most of a lane, or is \
             proved wrong again and again, is not believed. `lanemesh observe` shows what was said.";
        "slow_start" Span(ms(0), s(3_600)), Is("10s"),
            "In which an instance that is new, or back in rotation, gets its users: a tenth of them at once, the rest evenly. 0ms: \
             all at once.";
    }
    "admin": {
        "bind" Address, Is("127.0.0.1:15000"), "TCP address to bind. Other than loopback is refused unless allow_remote is true.";
        "allow_remote" Flag, Is("false"),
            "Allows `bind` to other than loopback. Who asks from elsewhere then needs the token for reads as well, \
             except for `/health`, `/ready` and `/metrics`.";
    }
    "log": {
        "filter" Text, Is("info"),
            "Level (off, error, warn, info, debug, trace), also per module: `info,lanemesh::proxy=debug`.";
        "format" Choice(&["text", "json"]), Is("text"), "For people or for programs.";
    }
    "access_log": {
        "sample" Share, Is("0.0"),
            "Share of requests logged, 0.0 to 1.0 or \"5%\". Errors are always logged; 0.0 logs nothing else.";
        "format" Choice(&["text", "json"]), Is("json"), "For people or for programs.";
        "hash_subject" Flag, Is("false"), "Logs a hash in place of the subject.";
        "path" Path, Unset("/var/log/lanemesh/access.log", "standard output"), "File to append to.";
    }
    "shutdown": {
        "spread" Span(ms(0), s(60)), Is("500ms"),
            "From the announced drain to the first thing that stops, so that every peer has heard of it.";
        "limit" Span(ms(0), s(3_600)), Is("25s"),
            "For requests in flight; what is left is then cut. With spread it should stay below what the supervisor allows \
             (Kubernetes: 30s).";
    }
    "service": {
        "subject" Texts, Unset("[\"header:x-tenant\", \"cookie:uid\"]", "the policy's, else proxy.subject"),
            "Who a request to this service is from.";
        "route_key" Texts, Unset("[\"header:x-cart-id\"]", "the subject"), "What is hashed on the ring to choose the instance.";
        "request_id_as_subject" Flag, Is("false"),
            "Allows a request id as subject, which gives every request its own lane: for batch and load-test traffic.";
        "tcp_key" Text, Is("source"),
            "What is hashed on the ring for a connection to the service's TCP port: `source` (the client's IP address; for loopback \
             the node's name), `random` (another instance for every connection), or `fixed:TEXT` (one instance for all).";
    }
    "instance": {
        "id" Name, Unset("orders-1", "the node id, for the first instance"),
            "Instance id, stable over restarts. Its place on the ring comes from this alone.";
        "service" Name, Needed("orders"), "The service it serves; the certificate must list it.";
        "host" Text, Unset("10.0.0.5", "the advertised IP address"), "Where other sidecars reach the application.";
        "port" Whole(1, 65_535), Needed("8080"), "Its TCP port.";
        "protocol" Choice(&["http1", "h2c", "grpc", "tcp"]), Is("http1"), "What it speaks.";
        "version" Name, Is("unknown"), "Version of the application.";
        "lane" Name, Is("stable"), "Lane that it serves.";
        "weight" Whole(0, 1_600), Is("100"), "Share of keys: 100 is normal, 0 takes no new traffic.";
        "tags" Table, Unset("{ rack = \"a7\" }", "none"), "Free labels; a record with all its tags has at most 8192 bytes.";
        "capacity" Whole(1, 4_294_967_295), Unset("500", "not announced"), "Requests a second that it can serve.";
        "load" Text, Is("none"),
            "How busy the application is, by which its weight follows: while it has more to do than it should, and more than its lane,              it keeps step by step less of it, at least half, and gets it back when there is room. `check`: the health reply says it in the              header x-lanemesh-load, as `0.6`, `60%` or, of `capacity`, `300/s`. `in-flight:NUMBER`: all sidecars tell how many requests they have in flight there, of so many that it can have at a time. `cgroup:DIR`: the kernel counts it, processor time and              memory against their limits. `none`: the weight stays as it is.";
        "check" Text, Is("tcp"),
            "Health check of the application: `http:/path` (GET answers 200 to 399), `tcp` (a connection is accepted) or \
             `none` (always passing). An instance takes traffic only after it passed.";
        "check_interval" Span(ms(100), s(3_600)), Is("1s"), "From the start of one check to the start of the next.";
        "check_timeout" Span(ms(10), s(600)), Unset("500ms", "500ms, or check_interval where that is shorter"),
            "Per check. At most check_interval.";
        "rise" Whole(1, 100), Is("2"), "Passed checks in a row until it takes traffic.";
        "fall" Whole(1, 100), Is("2"), "Failed checks in a row until it takes none.";
    }
};
