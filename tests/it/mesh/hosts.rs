//! What a host does to its sidecar: a kernel that fails on offload, a narrow path, a port that is rewritten on the way, a clock
//! that is set back a day, a full disk, an address that leads nowhere.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use serde_json::json;

use super::networks::{Namespaces, address, ip, pod, sees};
use crate::{
    skip::{skip, works},
    support::process::{Mesh, Pod, lanemesh, said, start_together, wait},
};

/// Something that must not happen is given this long: several probes of everybody.
const LONG_ENOUGH: Duration = Duration::from_secs(2);

/// Nobody takes anybody for dead meanwhile. (A doubt may come of a busy machine.)
fn stay_alive(pods: &[&Pod]) {
    let began = std::time::Instant::now();
    while began.elapsed() < LONG_ENOUGH {
        for pod in pods {
            let members = pod.members();
            assert!(members.values().all(|state| state != "down"), "{} sees {members:?}", pod.name);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// All see each other, whatever was done to them; it stays so, and what one says reaches all, 7,000 bytes included.
fn whole(pods: &[Pod]) {
    let all = |pod: &Pod| pod.members().values().filter(|state| *state == "alive").count() == pods.len();
    wait("all see all", || pods.iter().all(all));
    stay_alive(&pods.iter().collect::<Vec<_>>());
    for (at, pod) in pods.iter().enumerate() {
        let tags = json!({ "at": at.to_string(), "a": "x".repeat(3500), "b": "y".repeat(3500) });
        pod.must("PATCH", &format!("/v1/instances/{}", pod.name), &json!({ "tags": tags }));
        let has = |other: &Pod| other.instances()[&pod.name]["record"]["tags"] == tags;
        wait("a large record is everywhere", || pods.iter().all(has));
    }
}

fn three(mesh: &Mesh, change: impl Fn(&mut Pod)) -> Vec<Pod> {
    let mut pods: Vec<Pod> = (1..=3).map(|at| mesh.pod(&format!("n{at}"), &["orders"])).collect();
    for pod in &mut pods {
        pod.instance("orders", "127.0.0.1:9".parse().unwrap(), "check = \"none\"");
        change(pod);
    }
    start_together(&mut pods);
    pods
}

/// Case C30: the kernel says that it can cut large sends into packets, and fails when it is asked to. Nothing here asks.
#[test]
fn a_kernel_that_fails_on_offload_is_not_noticed() {
    const TEST: &str = "a_kernel_that_fails_on_offload_is_not_noticed";
    let dir = tempfile::tempdir().unwrap();
    let (source, shim) = (dir.path().join("shim.c"), dir.path().join("shim.so"));
    fs::write(&source, OFFLOAD_FAILS).unwrap();
    let arguments = ["-shared", "-fPIC", "-o", shim.to_str().unwrap(), source.to_str().unwrap(), "-ldl"];
    if !cfg!(target_os = "linux") || !works("cc", &arguments) {
        return skip(TEST, "run on Linux with a C compiler (`cc`) installed");
    }
    let mesh = Mesh::new("prod");
    let asked = dir.path().join("asked");
    let pods = three(&mesh, |pod| {
        pod.env =
            vec![("LD_PRELOAD".into(), shim.display().to_string()), ("SHIM_LOG".into(), asked.display().to_string())];
    });
    whole(&pods);
    let log = fs::read_to_string(&asked).unwrap_or_default();
    assert!(log.contains("loaded"), "the shim was there");
    assert!(!log.contains("segment"), "a send that the kernel should have cut");
}

/// Counts and fails every send that carries a segment size (`UDP_SEGMENT`, 103, at level `SOL_UDP`, 17).
const OFFLOAD_FAILS: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
static void say(const char *what) {
    const char *path = getenv("SHIM_LOG");
    int file = path ? open(path, O_WRONLY | O_CREAT | O_APPEND, 0600) : -1;
    if (file >= 0) { if (write(file, what, strlen(what)) < 0) {} close(file); }
}
__attribute__((constructor)) static void loaded(void) { say("loaded\n"); }
static int segments(const struct msghdr *msg) {
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR((struct msghdr *)msg, c))
        if (c->cmsg_level == 17 && c->cmsg_type == 103) return 1;
    return 0;
}
ssize_t sendmsg(int fd, const struct msghdr *msg, int flags) {
    static ssize_t (*real)(int, const struct msghdr *, int);
    if (!real) real = dlsym(RTLD_NEXT, "sendmsg");
    if (segments(msg)) { say("segment\n"); errno = EIO; return -1; }
    return real(fd, msg, flags);
}
int sendmmsg(int fd, struct mmsghdr *all, unsigned int count, int flags) {
    static int (*real)(int, struct mmsghdr *, unsigned int, int);
    if (!real) real = dlsym(RTLD_NEXT, "sendmmsg");
    for (unsigned int i = 0; i < count; i++)
        if (segments(&all[i].msg_hdr)) { say("segment\n"); errno = EIO; return -1; }
    return real(fd, all, count, flags);
}
"#;

/// Whether namespaces can be made and filtered here.
fn namespaces(test: &str, tag: char) -> Option<Namespaces> {
    let probe = format!("lanemesh-probe{tag}");
    if !works("ip", &["netns", "add", &probe]) {
        skip(test, "run as root on Linux with `ip` (iproute2) installed");
        return None;
    }
    let rule = "netns exec PROBE iptables -w -t nat -A POSTROUTING -p udp -j SNAT --to-source 10.0.0.1:40000-40100";
    let filters = works("ip", &rule.replace("PROBE", &probe).split(' ').collect::<Vec<_>>());
    ip(&format!("netns del {probe}"));
    if !filters {
        skip(test, "install `iptables`, on a kernel that has its `nat` table");
        return None;
    }
    Some(Namespaces::new(tag))
}

/// One on this side, two on the other; returned when all see all.
fn across(mesh: &Mesh, world: &Namespaces) -> (Pod, Vec<Pod>) {
    let here = world.inside(0, || pod(mesh, "a1", 0, &[]));
    let seeds: Vec<SocketAddr> = vec![here.run().gossip];
    let there: Vec<Pod> = world.inside(1, || ["b1", "b2"].iter().map(|name| pod(mesh, name, 1, &seeds)).collect());
    see_all(world, &here, &there);
    (here, there)
}

fn see_all(world: &Namespaces, here: &Pod, there: &[Pod]) {
    world.inside(0, || wait("all alive and routed to", || sees(here, 3)));
    world.inside(1, || wait("all alive and routed to", || there.iter().all(|pod| sees(pod, 3))));
}

/// A record of many packets crosses a path of 1,280 bytes, where larger ones are dropped in silence.
#[test]
fn a_path_of_1280_bytes_carries_everything() {
    let Some(world) = namespaces("a_path_of_1280_bytes_carries_everything", 'm') else { return };
    for at in 0..2 {
        ip(&format!("-n {} link set {} mtu 1280", world.names[at], world.links[at]));
    }
    let mesh = Mesh::new("prod");
    let (here, there) = across(&mesh, &world);
    let tags = json!({ "a": "x".repeat(3500), "b": "y".repeat(3500) });
    world.inside(0, || here.must("PATCH", "/v1/instances/a1", &json!({ "tags": tags })));
    world.inside(1, || {
        let has = |pod: &Pod| pod.instances()["a1"]["record"]["tags"] == tags;
        wait("a large record has crossed", || there.iter().all(has));
    });
}

/// What comes from the other side has another port than its sidecars advertise, as behind some routers; it is reached at the
/// advertised one.
#[test]
fn a_source_port_that_is_rewritten_on_the_way_changes_nothing() {
    let Some(world) = namespaces("a_source_port_that_is_rewritten_on_the_way_changes_nothing", 'n') else { return };
    let (name, to) = (&world.names[1], address(1));
    let rule = format!("-t nat -A POSTROUTING -o {} -p udp -j SNAT --to-source {to}:40000-40100", world.links[1]);
    ip(&format!("netns exec {name} iptables -w {rule}"));
    let mesh = Mesh::new("prod");
    let (here, mut there) = across(&mesh, &world);
    world.inside(0, || {
        stay_alive(&[&here]);
        let list = here.get("/v1/members");
        for member in list.as_array().unwrap() {
            assert!(!member["addr"].as_str().unwrap().contains(":400"), "its own word says where it is: {member}");
        }
    });
    world.inside(1, || there[0].kill9());
    world.inside(0, || wait("its death is seen", || here.state_of("b1") == "down"));
    world.inside(1, || there[0].start());
    see_all(&world, &here, &there);
}

/// The library that lies about the time, where Debian puts it.
fn faketime() -> Option<PathBuf> {
    let places = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
    places.iter().map(|place| Path::new(place).join("faketime/libfaketimeMT.so.1")).find(|path| path.exists())
}

/// One clock is set back a day while everything runs. Nothing waits by it; what its node says and decides is taken as before.
#[test]
fn a_clock_that_is_set_back_a_day_stops_nothing() {
    let Some(library) = faketime() else {
        return skip("a_clock_that_is_set_back_a_day_stops_nothing", "install `faketime`");
    };
    let lies = |extra: &[(&str, &str)]| -> Vec<(String, String)> {
        let common = [("LD_PRELOAD", library.to_str().unwrap()), ("FAKETIME_DONT_FAKE_MONOTONIC", "1")];
        let all = common.iter().chain(extra.iter());
        all.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    // The certificates are three days old: a day earlier they were valid as well.
    let mesh = Mesh::with("prod", lies(&[("FAKETIME", "-3d")]));
    let shift = mesh.dir.path().join("shift");
    fs::write(&shift, "+0").unwrap();
    let file = shift.to_str().unwrap().to_owned();
    let pods = three(&mesh, |pod| {
        if pod.name == "n2" {
            pod.env = lies(&[("FAKETIME_TIMESTAMP_FILE", &file), ("FAKETIME_NO_CACHE", "1")]);
        }
    });
    whole(&pods);
    fs::write(&shift, "-1d").unwrap();
    wait("its clock is behind", || {
        pods[1].metric("lanemesh_clock_ahead_seconds", &[]).is_some_and(|ahead| ahead < -80_000.0)
    });
    whole(&pods);
    pods[1].must("PATCH", "/v1/policies/orders", &json!({ "sizes": { "canary": 300 }, "force": true }));
    let share = |pod: &Pod| pod.get("/v1/policies/orders")["policy"]["lanes"]["canary"]["size"].as_u64();
    wait("its policy is everybody's", || pods.iter().all(|pod| share(pod) == Some(300)));
    pods[1].must("POST", "/v1/rollback/orders", &json!({ "reason": "test" }));
    let off = |pod: &Pod| pod.get("/v1/services")[0]["off"] == true;
    wait("its rollback is everybody's", || pods.iter().all(off));
}

/// The disk fills while a sidecar runs: it goes on and says so once; when there is room again, a restart knows everything.
#[test]
fn a_full_disk_is_survived_and_said_once() {
    const TEST: &str = "a_full_disk_is_survived_and_said_once";
    struct Small(PathBuf);
    impl Drop for Small {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg("--lazy").arg(&self.0).output();
        }
    }
    let mesh = Mesh::new("prod");
    let disk = mesh.dir.path().join("n2/data");
    fs::create_dir_all(&disk).unwrap();
    if !works("mount", &["-t", "tmpfs", "-o", "size=256k", "tmpfs", disk.to_str().unwrap()]) {
        return skip(TEST, "run as root, where a small tmpfs can be mounted");
    }
    let _small = Small(disk.clone());
    let mut pods = three(&mesh, |_| {});
    whole(&pods);
    let filler = disk.join("filler");
    // Until there is no room: the last write fails.
    let _ = fs::write(&filler, vec![0; 1 << 20]);
    pods[0].must("PATCH", "/v1/instances/n1", &json!({ "weight": 55 }));
    wait("it says so", || pods[1].log().contains("state file"));
    whole(&pods);
    pods[1].must("PATCH", "/v1/instances/n2", &json!({ "weight": 66 }));
    wait("it still speaks", || pods[0].instances()["n2"]["record"]["weight"] == 66);
    assert_eq!(pods[1].log().matches("going on without it").count(), 1, "{}", pods[1].log());

    fs::remove_file(&filler).unwrap();
    // Whatever comes next is written, and with it all the rest.
    pods[0].must("PATCH", "/v1/instances/n1", &json!({ "tags": { "seen": "after-the-flood" } }));
    wait("it writes again", || {
        let text = fs::read(disk.join("state")).unwrap_or_default();
        text.windows(15).any(|bytes| bytes == b"after-the-flood")
    });
    pods[1].kill9();
    pods[1].start();
    whole(&pods);
}

/// An address that nobody else could reach is refused at the start, with the cure.
#[test]
fn an_address_that_peers_cannot_use_is_refused_with_the_cure() {
    let mesh = Mesh::new("prod");
    let mut lost = mesh.pod("lost", &["orders"]);
    lost.seeds = vec!["10.231.77.9:7946".parse().unwrap()];
    for (set, cure) in [
        ("gossip.bind=127.0.0.1:0", "set gossip.advertise to this pod's own IP address"),
        ("gossip.advertise=0.0.0.0:7946", "write the address by which peers reach this host"),
    ] {
        lost.flags = vec!["--set".into(), set.into()];
        let ended = lanemesh(lost.arguments()).output().unwrap();
        assert_eq!(ended.status.code(), Some(1), "{}", said(&ended));
        let text = said(&ended);
        assert!(text.contains(cure), "{text}");
    }
}
