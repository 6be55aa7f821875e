//! Commands against the admin API on a real listener, as typed: what they print, and how they end.

use std::{io::Write, path::PathBuf, sync::Arc};

use clap::CommandFactory;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    admin::{AdminState, serve},
    agent::{
        Handle,
        fake::{Fake, Told},
    },
    types::Mono,
};

struct Sidecar {
    addr: String,
    told: Told,
    token: PathBuf,
    _dir: tempfile::TempDir,
}

impl Sidecar {
    async fn start(mut fake: Fake) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let token = Arc::new(crate::admin::token::load_or_create(dir.path()).unwrap());
        let file = dir.path().join(crate::admin::token::FILE_NAME);
        fake.info.token_file = file.display().to_string();
        let (handle, told) = Handle::for_test(fake);
        let state = AdminState {
            handle,
            metrics: Arc::new(String::new),
            ready: Arc::new(Vec::new),
            token,
            clock: Arc::new(|| Mono::ZERO),
            allow_remote: false,
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        tokio::spawn(serve(listener, state, CancellationToken::new()));
        Self { addr, told, token: file, _dir: dir }
    }

    async fn run(&self, line: &str) -> Outcome {
        run(&format!("{line} --admin {}", self.addr)).await
    }

    async fn prints(&self, line: &str) -> String {
        self.run(line).await.unwrap_or_else(|failure| panic!("{line}: {failure}"))
    }

    async fn json(&self, line: &str) -> Value {
        serde_json::from_str(&self.prints(&format!("{line} --json")).await).unwrap()
    }

    async fn fails(&self, line: &str) -> Failure {
        self.run(line).await.expect_err(line)
    }
}

async fn run(line: &str) -> Outcome {
    let cli = Cli::try_parse_from(format!("lanemesh {line}").split_whitespace())
        .map_err(|error| Failure::new(Exit::Usage, error.to_string()))?;
    match &cli.command {
        Command::Sidecar(command) => ask(command, cli.json).await,
        other => panic!("{other:?} asks no sidecar"),
    }
}

async fn started() -> Sidecar {
    Sidecar::start(Fake::new()).await
}

#[test]
fn the_grammar_is_sound_and_every_verb_is_there() {
    Cli::command().debug_assert();
    let names: Vec<String> = Cli::command()
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
        .map(|command| command.get_name().to_owned())
        .collect();
    assert_eq!(
        names,
        [
            "run",
            "members",
            "services",
            "instances",
            "route",
            "ring",
            "observe",
            "policy",
            "rollback",
            "drain",
            "undrain",
            "leave",
            "info",
            "check",
            "ca",
            "config",
            "demo"
        ]
    );
    let help = Cli::command().render_long_help().to_string();
    for exit in [Exit::Failed, Exit::Usage, Exit::Unreachable, Exit::NotFound, Exit::NotAllowed] {
        assert!(help.contains(&format!("\n  {}  ", exit as u8)), "exit code {exit:?} is documented");
    }
}

#[tokio::test]
async fn members_in_a_table() {
    let sidecar = started().await;
    assert_eq!(
        sidecar.prints("members").await,
        "NAME       STATE  ADDRESS         GENERATION  SERVICES  PROGRAM  WHY\n\
         n1 (this)  alive  127.0.0.1:7001  3.1         orders    0.1.0    -\n\
         n2         alive  127.0.0.1:7002  3.1         orders    0.1.0    -\n\
         n3         down   127.0.0.1:7003  3.1         orders    0.1.0    accused by n1; accused by n2\n"
    );
    assert!(sidecar.prints("members --all").await.contains("n4         left"));
    assert_eq!(sidecar.json("members").await.as_array().unwrap().len(), 3, "JSON has the same members as the table");
    assert_eq!(sidecar.json("members --all").await[3]["why"], json!(["said goodbye"]));
}

#[tokio::test]
async fn one_member_is_told_in_full_and_views_are_compared() {
    let sidecar = started().await;
    let told = sidecar.prints("members why n2").await;
    for line in [
        "accused        by n3 (port refused, 0.9 s ago); nobody has confirmed it, so it is not spread",
        "probed         40 by this sidecar, 2 missed, the last answer took 1.5 ms",
        "0.9 s  its port refused: accused",
    ] {
        assert!(told.contains(line), "{told}");
    }
    assert_eq!(sidecar.json("members why n2").await["story"]["accusers"][0]["node"], "n3");
    assert_eq!(
        sidecar.prints("members --compare").await,
        "MEMBER  ITS VIEW\n\
         n2      same\n\
         n3      n4: alive here, down there; 1 entry newer there\n\
         n4      no answer: 10.0.0.4:7946 did not answer within 1s\n\
         \n1 of 3 see what this sidecar sees\n"
    );
}

#[tokio::test]
async fn instances_in_a_table_say_who_drained_them_and_why() {
    let sidecar = started().await;
    assert_eq!(
        sidecar.prints("instances").await,
        "SERVICE  ID  NODE  ADDRESS         LANE    VERSION  WEIGHT  HEALTH   DRAINED                                          EXCLUDED\n\
         orders   n1  n1    127.0.0.1:8001  stable  v1       100     passing  -                                                -\n\
         orders   n2  n2    127.0.0.1:8002  canary  v2       100     passing  by ann at 2025-11-30T04:00:00Z: disk \u{fffd}[31m full  draining\n"
    );
    assert_eq!(sidecar.prints("instances list --lane canary").await.lines().count(), 2);
    assert_eq!(sidecar.prints("instances --service other").await, "no instances\n");
    let first = sidecar.json("instances").await;
    assert_eq!(first[1]["record"]["drain"]["reason"], "disk \u{1b}[31m full", "JSON has it as it is");
}

#[tokio::test]
async fn json_is_complete_and_the_same_every_time() {
    let sidecar = started().await;
    for line in
        ["members", "services", "instances", "route orders --key u1", "ring orders", "observe", "policy show", "info"]
    {
        let first = sidecar.prints(&format!("{line} --json")).await;
        assert_eq!(first, sidecar.prints(&format!("--json {line}")).await, "{line}");
        assert!(first.ends_with('\n') && serde_json::from_str::<Value>(&first).is_ok(), "{line}");
    }
}

#[tokio::test]
async fn observe_says_who_saw_what_and_what_follows() {
    assert_eq!(
        started().await.prints("observe").await,
        "kept away  n2 of orders for 1 s: 4 of 4 failed, seen by n1, n3\n\
         says       n3, 1.5 s ago: n2 of orders: 2 of 2 failed (others see the same)\n\
         observed   u7, for 1m, by ann\n"
    );
}

#[tokio::test]
async fn a_subject_is_observed_by_everybody_and_who_has_not_heard_is_named() {
    let sidecar = started().await;
    assert_eq!(
        sidecar.prints("observe --subject u1 --for 30s --by ann").await,
        "u1: observed for 30s: look into the access logs for user_id; 1 of 2 nodes know\nn2: no answer within 3.5 s\n"
    );
    assert_eq!(sidecar.told.take(), ["observe u1 for 30000 ms by ann"]);
    assert!(sidecar.prints("observe --subject u1 --for 0s").await.starts_with("u1: no longer observed"));
    assert_eq!(sidecar.json("observe --subject u1").await[1]["node"], "n2");
    assert_eq!(sidecar.fails("observe --for 30s").await.exit, Exit::Usage);
    assert_eq!(sidecar.fails("observe --subject u1 --for 30").await.exit, Exit::Usage);
}

#[tokio::test]
async fn services_show_lanes_and_shares() {
    assert_eq!(
        started().await.prints("services").await,
        "SERVICE  READY  LANES                        POLICY\n\
         orders   1/2    canary 0/1 (5%), stable 1/1  0.1764475200000\n"
    );
}

#[tokio::test]
async fn route_and_ring_are_worded_by_routing() {
    let sidecar = started().await;
    let text = sidecar.prints("route orders --key u1").await;
    assert!(text.contains("u1") && text.contains("canary") && text.contains("allow") && text.ends_with('\n'), "{text}");
    assert_eq!(sidecar.json("route orders --key u1").await["lane_reason"], "allow-list");
    assert_eq!(sidecar.json("route orders --key u1 --anonymous").await["lane_reason"], "anonymous");
    assert!(sidecar.json("route orders --key u1 --method POST").await["instance"].is_null());
    assert!(sidecar.prints("ring orders").await.contains("256"));
    let mesh = sidecar.prints("route orders --key u1 --mesh").await;
    for line in [
        "n1    canary  stable     n1        0.1764475200000  ",
        "n3: it passes over n1: its breaker is open",
        "n4: no answer within 3.5 s",
        "2 answer as n1, 1 differ, 1 did not answer",
    ] {
        assert!(mesh.contains(line), "{line}: {mesh}");
    }
    assert_eq!(sidecar.json("route orders --header x-user-id:u1 --path /v2").await["subject"], "u1");
    assert_eq!(sidecar.fails("route orders").await.exit, Exit::Usage);
    assert_eq!(sidecar.fails("route orders --key u1 --header x-beta").await.exit, Exit::Usage);
    let failure = sidecar.fails("route nosuch --key u1").await;
    assert_eq!((failure.exit, failure.cure.as_deref()), (Exit::NotFound, Some("known services: orders")));
}

#[tokio::test]
async fn a_policy_is_shown_with_everything() {
    let sidecar = started().await;
    assert_eq!(
        sidecar.prints("policy show orders").await,
        "service     orders\n\
         state       on\n\
         version     0.1764475200000 by n1\n\
         set at      2025-11-30T04:00:00Z\n\
         reason      try v2\n\
         experiment  orders\n\
         scheme      prefixed\n\
         subject     as each sidecar is configured\n\
         anonymous   stable\n\
         empty lane  safe fallback, unsafe fail, stable fail\n\
         \n\
         LANE    SHARE  BUCKETS   SAMPLED  ALLOWED  DENIED\n\
         stable  95%    the rest  94.9%    -        -\n\
         canary  5%     0 to 499  5.1%     u1       -\n"
    );
    assert_eq!(
        sidecar.prints("policy show").await,
        "SERVICE  SHARES     LISTED  VERSION          SET                            REASON\n\
         orders   canary 5%  1       0.1764475200000  by n1 at 2025-11-30T04:00:00Z  try v2\n"
    );
    assert_eq!(sidecar.fails("policy show cart").await.exit, Exit::NotFound);
}

#[tokio::test]
async fn a_policy_is_changed_by_what_is_given_and_nothing_else() {
    let sidecar = started().await;
    sidecar
        .prints("policy set orders --canary 25% --reason raise --force --allow canary:u2,u3 --allow canary:u4")
        .await;
    sidecar.prints("policy set orders --lane canary=1% --lane beta=0.5% --deny beta:u9").await;
    sidecar.prints("policy set orders --empty-unsafe fallback --subject header:X-Tenant,cookie:uid --on").await;
    let told = sidecar.told.take();
    assert!(
        told[0].contains("canary: 2500")
            && told[0].contains(r#"["u2", "u3", "u4"]"#)
            && told[0].contains("force: true")
    );
    assert!(
        told[1].contains("beta: 50") && told[1].contains("canary: 100") && told[1].contains("empty: None"),
        "{}",
        told[1]
    );
    let kept = "EmptyLaneRule { safe: Fallback, unsafe_methods: Fallback, stable_to_others: false }";
    assert!(
        told[2].contains(kept) && told[2].contains("off: Some(false)") && told[2].contains(r#"Header("x-tenant")"#),
        "{}",
        told[2]
    );
    for line in
        ["", "--reason why", "--force", "--lane canary=5% --canary 6%", "--canary 5", "--off --on", "--allow canary"]
    {
        assert_eq!(sidecar.fails(&format!("policy set orders {line}")).await.exit, Exit::Usage, "{line}");
    }
    assert!(sidecar.told.take().is_empty());
}

#[tokio::test]
async fn rollback_is_one_command() {
    let sidecar = started().await;
    assert_eq!(
        sidecar.prints("rollback orders --reason errors").await,
        "orders: everybody goes to stable (policy 1.1764475200000, by n1)\n"
    );
    assert_eq!(sidecar.told.take(), ["rollback orders: errors"]);
    let set = sidecar.prints("policy set orders --lane canary=5% --select canary:version:v9 --unselect gray").await;
    assert!(set.contains("note: lane `gray` had no selector (no lane has one)\n"), "{set}");
    assert!(set.contains("note: no instance of `orders` has version:v9 today"), "{set}");
    sidecar.told.take();
    assert_eq!(sidecar.fails("rollback cart").await.exit, Exit::NotFound);
}

#[tokio::test]
async fn drains_say_what_changed() {
    let sidecar = started().await;
    assert_eq!(sidecar.prints("drain n1 --reason disk --by ann").await, "n1 drained\n");
    assert_eq!(sidecar.prints("undrain n1").await, "n1 back in rotation\n");
    assert_eq!(sidecar.told.take(), ["drain [n1] by ann: disk", "undrain [n1]"]);
    let refused = sidecar.fails("drain n1 --min-ready 2").await;
    assert!(refused.exit == Exit::Failed && refused.error.contains("2 are wanted"));
    assert_eq!(sidecar.fails("drain n1 --wait").await.exit, Exit::Usage, "there is nothing to wait for");
    assert_eq!(sidecar.told.take().len(), 1);
    sidecar.fails("drain n1 --min-ready 2 --wait=700ms").await;
    assert_eq!(sidecar.told.take().len(), 2, "it tried again, then gave up");
}

#[tokio::test]
async fn instances_are_changed_registered_and_withdrawn() {
    let sidecar = started().await;
    let set = sidecar.prints("instances set n1 --weight 50 --tag rack=a7 --tag empty=").await;
    assert!(set.contains("weight    50\n") && set.contains("tags      empty=, rack=a7\n"), "{set}");
    let made = sidecar.json("instances register x1 --service orders --host 10.0.0.9 --port 8080 --lane canary").await;
    assert_eq!((&made["id"], &made["lane"], &made["weight"]), (&json!("x1"), &json!("canary"), &json!(100)));
    assert_eq!(sidecar.prints("instances deregister x1").await, "x1 is withdrawn\n");
    assert_eq!(sidecar.fails("instances deregister x1").await.exit, Exit::NotFound);
    assert_eq!(sidecar.fails("instances set n1 --weight 1601").await.exit, Exit::Usage);
    assert_eq!(sidecar.fails("instances set n1").await.exit, Exit::Usage);
}

#[tokio::test]
async fn leaving_and_info() {
    let sidecar = started().await;
    assert!(sidecar.prints("info").await.starts_with("node           n1\nmesh           demo\nready          yes\n"));
    assert!(sidecar.prints("leave").await.contains("has left the mesh"));
    assert_eq!(sidecar.json("leave").await["left"], true);
}

#[tokio::test]
async fn the_token_is_found_or_the_message_says_where_it_should_be() {
    let sidecar = started().await;
    let mut wrong = tempfile::NamedTempFile::new().unwrap();
    writeln!(wrong, "{}", "0".repeat(64)).unwrap();
    let refused = sidecar.fails(&format!("leave --token-file {}", wrong.path().display())).await;
    assert!(refused.exit == Exit::NotAllowed && refused.error.contains("missing or wrong"));
    assert_eq!(sidecar.fails("leave --token-file /nonexistent").await.exit, Exit::NotAllowed);
    sidecar.prints(&format!("leave --token-file {}", sidecar.token.display())).await;
    std::fs::remove_file(&sidecar.token).unwrap();
    let refused = sidecar.fails("leave").await;
    assert!(refused.exit == Exit::NotAllowed && refused.error.contains("admin.token"), "{refused}");
    assert!(refused.cure.unwrap().contains("--token-file"));
    sidecar.prints("members").await;
}

#[tokio::test]
async fn five_thousand_instances_come_through_whole() {
    let mut fake = Fake::new();
    let one = fake.instances[0].clone();
    fake.instances = (0..5_000)
        .map(|n| {
            let mut info = one.clone();
            info.record.id = format!("i{n}").parse().unwrap();
            info
        })
        .collect();
    let sidecar = Sidecar::start(fake).await;
    assert_eq!(sidecar.prints("instances").await.lines().count(), 5_001);
    assert_eq!(sidecar.json("instances").await.as_array().unwrap().len(), 5_000);
}

/// Scripts read it: names, verdicts and keys stay.
#[tokio::test]
async fn check_says_the_same_to_programs() {
    let sidecar = started().await;
    let asked = ["lanemesh", "check", "membership", "catalog", "app", "views", "--json", "--admin", &sidecar.addr];
    let cli = Cli::try_parse_from(asked).unwrap();
    let Command::Check(args) = &cli.command else { panic!("a check") };
    let (text, code) = check::run(args, true).await.unwrap();
    let mut report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["sidecar"].take(), json!(sidecar.addr));
    assert_eq!(code, std::process::ExitCode::from(1));
    assert_eq!(format!("{report:#}\n"), include_str!("check/golden.json"));
}
