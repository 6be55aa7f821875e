//! The acts of the demo, and what each must show. Nothing is claimed that was not measured in this run.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use http::Method;
use serde::Serialize;
use serde_json::json;

use super::{
    load::{Load, Move, Served, USERS, user},
    mesh::{Mesh, Pod},
    screen::Screen,
};

/// How long an act goes on after every user was seen, so that people can look.
const LINGER: Duration = Duration::from_millis(1200);
/// The pod that is killed: one of three stable ones.
const VICTIM: usize = 1;
/// The pod that is drained: one of two canaries.
const DRAINED: usize = 3;
/// Within this time after a rollback nobody may be on canary any more.
const ROLLBACK_LIMIT: Duration = Duration::from_secs(1);
/// Canary users whose route every sidecar is asked for after the rollback.
const ASKED: usize = 20;

/// One measured claim.
#[derive(Debug, Clone, Serialize)]
pub struct Claim {
    /// What is claimed.
    pub claim: String,
    /// What was measured.
    pub measured: String,
    /// Whether it holds.
    pub passed: bool,
}

/// The end of the demo.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// Whether every claim holds.
    pub passed: bool,
    /// All claims.
    pub claims: Vec<Claim>,
    /// Requests sent.
    pub requests: u64,
    /// Seconds it took.
    pub seconds: f64,
}

/// Where every user is served.
type Places = BTreeMap<usize, Served>;

/// Plays all acts.
pub async fn tell(mesh: &mut Mesh, screen: &mut Screen) -> Result<Summary> {
    let began = Instant::now();
    screen.say("starting five sidecars of `orders` with an application each, and one of `shop` (11 processes)");
    let took = mesh.start().await?;
    screen.say(&format!("the shop routes to all five {} ms after the first sidecar was started", took.as_millis()));
    let load = Load::start(&mesh.shop().proxy);
    let mut story = Story { claims: Vec::new(), policy_moves: Vec::new() };
    let told = story.play(mesh, screen, &load).await;
    let (requests, failures, samples) = load.look(|seen| (seen.requests, seen.failures, seen.samples.clone()));
    load.stop().await;
    told?;
    let samples = if samples.is_empty() { String::new() } else { format!(": {}", samples.join("; ")) };
    story.claims.insert(0, claim("failed requests", failures == 0, format!("{failures} of {requests}{samples}")));
    let passed = story.claims.iter().all(|claim| claim.passed);
    Ok(Summary { passed, claims: story.claims, requests, seconds: began.elapsed().as_secs_f64() })
}

struct Story {
    claims: Vec<Claim>,
    /// Index ranges of the moves that a policy change may cause.
    policy_moves: Vec<std::ops::Range<usize>>,
}

impl Story {
    async fn play(&mut self, mesh: &mut Mesh, screen: &mut Screen, load: &Load) -> Result<()> {
        act(screen, load, "everybody on stable: no policy yet", Instant::now()).await;
        let stable = places(load);
        let off_stable = stable.values().filter(|served| &*served.lane != "stable").count();
        self.add("before any policy all users are on stable", off_stable == 0, format!("{off_stable} elsewhere"));

        self.raise(mesh, screen, load, 5, 100.0).await?;
        self.raise(mesh, screen, load, 25, 500.0).await?;
        self.kill_and_restart(mesh, screen, load).await?;
        self.drain(mesh, screen, load).await?;
        self.rollback(mesh, screen, load).await?;
        self.lane_changes(load);
        Ok(())
    }

    /// Raises the canary; `expected` users should be on it then, give or take four standard deviations.
    async fn raise(
        &mut self,
        mesh: &Mesh,
        screen: &mut Screen,
        load: &Load,
        percent: u16,
        expected: f64,
    ) -> Result<()> {
        let (before, moves) = (places(load), count_moves(load));
        let change = json!({ "sizes": { "canary": percent * 100 }, "reason": "demo" });
        // Any node takes the order; it reaches all the others by gossip.
        mesh.order(&mesh.pods[0], Method::PATCH, "/v1/policies/orders", &change).await?;
        self.await_policy(mesh, false).await?;
        act(screen, load, &format!("canary {percent} %: set on orders-1, in force in the whole mesh"), Instant::now())
            .await;
        let after = places(load);
        self.policy_moves.push(moves..count_moves(load));
        let on = |places: &Places| -> BTreeSet<usize> {
            places.iter().filter(|(_, served)| &*served.lane == "canary").map(|(user, _)| *user).collect()
        };
        let (was, is) = (on(&before), on(&after));
        let lost = was.difference(&is).count();
        let spread = 4.0 * (expected * (1.0 - expected / USERS as f64)).sqrt();
        let near = (is.len() as f64 - expected).abs() <= spread;
        let measured = format!("{} of {USERS} users ({:.1} %)", is.len(), 100.0 * is.len() as f64 / USERS as f64);
        self.add(&format!("canary {percent} % takes that share of users"), near, measured);
        self.add(
            &format!("raising to {percent} % only adds users"),
            lost == 0,
            format!("{} were on it, {lost} left, {} added", was.len(), is.len() - (was.len() - lost)),
        );
        Ok(())
    }

    async fn kill_and_restart(&mut self, mesh: &mut Mesh, screen: &mut Screen, load: &Load) -> Result<()> {
        let name = mesh.pods[VICTIM].name.clone();
        let before = places(load);
        let mine: Vec<usize> = before.iter().filter(|(_, s)| *s.instance == *name).map(|(user, _)| *user).collect();
        let mut next = BTreeMap::new();
        for at in &mine {
            next.insert(*at, second_choice(mesh, *at).await?);
        }
        load.take_latencies();
        let moves = count_moves(load);
        let killed = Instant::now();
        mesh.kill(VICTIM).await?;
        act(screen, load, &format!("kill -9 {name}: its {} users move, nobody else", mine.len()), killed).await;
        let moved = moves_since(load, moves);
        let strangers = moved.iter().filter(|m| *m.from.instance != *name).count();
        let after = places(load);
        let astray = mine.iter().filter(|at| after[*at].instance.as_ref() != next[*at]).count();
        let movers: BTreeSet<usize> = moved.iter().map(|m| m.user).collect();
        self.add(
            "users moved by the kill = exactly those of the killed instance",
            strangers == 0 && movers.len() == mine.len(),
            format!(
                "{} of its {} users moved, {strangers} others",
                movers.len() - strangers.min(movers.len()),
                mine.len()
            ),
        );
        self.add("each to the next instance in its ring order", astray == 0, format!("{astray} elsewhere"));
        let latencies = load.take_latencies();
        let at = |share: f64| f64::from(latencies[((latencies.len() - 1) as f64 * share) as usize]) / 1000.0;
        screen.say(&format!(
            "  latency over the kill: median {:.2} ms, 99 % {:.2} ms, slowest {:.1} ms",
            at(0.5),
            at(0.99),
            at(1.0)
        ));

        screen.say(&format!("starting {name} again, under its name and addresses"));
        mesh.restart(VICTIM).await?;
        mesh.await_candidates(5).await?;
        act(
            screen,
            load,
            &format!("{name} is back: its users return (without slow start here), nobody else moves"),
            Instant::now(),
        )
        .await;
        let back = places(load);
        let not_back = before.iter().filter(|(user, served)| back[*user] != **served).count();
        self.add("after the restart everybody is back where they were", not_back == 0, format!("{not_back} elsewhere"));
        Ok(())
    }

    async fn drain(&mut self, mesh: &Mesh, screen: &mut Screen, load: &Load) -> Result<()> {
        let pod = &mesh.pods[DRAINED];
        let (before, moves) = (places(load), count_moves(load));
        mesh.order(pod, Method::POST, "/v1/drain", &json!({ "reason": "demo", "by": "demo" })).await?;
        mesh.await_candidates(4).await?;
        act(screen, load, &format!("drain {}: its users go to the other canary", pod.name), Instant::now()).await;
        let moved = moves_since(load, moves);
        let users = before.values().filter(|served| *served.instance == *pod.name).count();
        let wrong = moved.iter().filter(|m| *m.from.instance != *pod.name || &*m.to.lane != "canary").count();
        let right = moved.len() == users && wrong == 0;
        let measured = format!("{} of its {users} users moved, {wrong} wrongly", moved.len());
        self.add("the drain moves exactly the drained canary's users, within their lane", right, measured);
        Ok(())
    }

    async fn rollback(&mut self, mesh: &Mesh, screen: &mut Screen, load: &Load) -> Result<()> {
        let on_canary: Vec<usize> =
            places(load).iter().filter(|(_, s)| &*s.lane == "canary").map(|(user, _)| *user).collect();
        let moves = count_moves(load);
        let began = Instant::now();
        mesh.order(&mesh.pods[2], Method::POST, "/v1/rollback/orders", &json!({ "reason": "demo" })).await?;
        self.await_policy(mesh, true).await?;
        let everywhere = began.elapsed();
        let sample: Vec<usize> = on_canary.iter().copied().take(ASKED).collect();
        let mut still = 0;
        for pod in &mesh.pods {
            for at in &sample {
                still += usize::from(lane_of(mesh, pod, *at).await? != "stable");
            }
        }
        act(screen, load, "rollback: one command on orders-3, effective everywhere", began + ROLLBACK_LIMIT).await;
        self.policy_moves.push(moves..count_moves(load));
        let late = moves_since(load, moves)
            .iter()
            .filter(|m| &*m.to.lane == "canary" || m.at > began + ROLLBACK_LIMIT + Duration::from_millis(1100))
            .count();
        let left = places(load).values().filter(|served| &*served.lane == "canary").count();
        let asked = mesh.pods.len();
        self.add(
            "after the rollback nobody is on canary within 1 s, asked of every sidecar",
            everywhere <= ROLLBACK_LIMIT && still == 0 && left == 0 && late == 0,
            format!(
                "{} ms until all {asked} sidecars agreed; {left} of {} users still served by canary",
                everywhere.as_millis(),
                on_canary.len()
            ),
        );
        Ok(())
    }

    /// Lane changes are allowed only where a policy change was made.
    fn lane_changes(&mut self, load: &Load) {
        let outside = load.look(|seen| {
            let moves = seen.moves.iter().enumerate().filter(|(_, m)| m.from.lane != m.to.lane);
            moves.filter(|(at, _)| !self.policy_moves.iter().any(|range| range.contains(at))).count()
        });
        self.add("users that changed lane outside a policy change", outside == 0, outside.to_string());
    }

    /// Waits until every sidecar's policy is (not) off, asked one after the other, round after round.
    async fn await_policy(&self, mesh: &Mesh, off: bool) -> Result<()> {
        let wanted = mesh.ask(&mesh.pods[if off { 2 } else { 0 }], "/v1/policies/orders").await?;
        let until = Instant::now() + Duration::from_secs(10);
        for pod in &mesh.pods {
            loop {
                let policy = mesh.ask(pod, "/v1/policies/orders").await.unwrap_or_default();
                if policy["policy"]["version"] == wanted["policy"]["version"] {
                    break;
                }
                anyhow::ensure!(Instant::now() < until, "the policy did not reach {}", pod.name);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        Ok(())
    }

    fn add(&mut self, what: &str, passed: bool, measured: String) {
        self.claims.push(claim(what, passed, measured));
    }
}

fn claim(what: &str, passed: bool, measured: String) -> Claim {
    Claim { claim: what.to_owned(), measured, passed }
}

/// Shows an act until every user was served after `since`, and a moment longer.
async fn act(screen: &mut Screen, load: &Load, title: &str, since: Instant) {
    screen.title(title);
    let seen = async {
        load.everybody_since(since).await;
        tokio::time::sleep(LINGER).await;
    };
    screen.watch(load, seen).await;
}

fn places(load: &Load) -> Places {
    load.look(|seen| {
        let users = seen.users.iter().enumerate();
        users.filter_map(|(at, user)| user.as_ref().map(|(served, _)| (at, served.clone()))).collect()
    })
}

fn count_moves(load: &Load) -> usize {
    load.look(|seen| seen.moves.len())
}

fn moves_since(load: &Load, from: usize) -> Vec<Move> {
    load.look(|seen| seen.moves[from..].to_vec())
}

/// The second instance of a user's failover order, as the shop tells it.
async fn second_choice(mesh: &Mesh, at: usize) -> Result<String> {
    let route = mesh.ask(mesh.shop(), &format!("/v1/route/orders?key={}", user(at))).await?;
    Ok(route["failover"][1].as_str().context("the failover order has no second instance")?.to_owned())
}

/// The lane that a sidecar gives a user.
async fn lane_of(mesh: &Mesh, pod: &Pod, at: usize) -> Result<String> {
    let route = mesh.ask(pod, &format!("/v1/route/orders?key={}", user(at))).await?;
    Ok(route["lane"].as_str().context("no lane")?.to_owned())
}
