//! What a decision costs, and what keeping the rings ready for it costs. Targets (PEERS.md): a full decision at 1,000 instances
//! in 150 ns without an allocation; a ring of 1,000 instances built in 15 ms, one change of it in 3 ms.
//!
//! `cargo bench --bench choose`

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use lanemesh::{
    routing::{Builder, CandidateTable, Member, Ring, choose, key_hash},
    types::InstanceId,
};

#[path = "../tests/it/counting.rs"]
mod counting;
#[path = "../tests/it/fleet.rs"]
mod fleet;

const SIZES: [usize; 3] = [10, 100, 1_000];
/// Enough different subjects that neither ring nor cells are read from the nearest cache only.
const SUBJECTS: usize = 4_096;

fn subjects() -> Vec<String> {
    (0..SUBJECTS).map(|n| format!("user-{n:08}")).collect()
}

fn decisions(c: &mut Criterion) {
    let subjects = subjects();
    let mut group = c.benchmark_group("decision");
    for size in SIZES {
        let with_policy = fleet::table(size);
        let without = CandidateTable { policies: Default::default(), ..with_policy.clone() };
        let snapshots = [
            ("policy, bucket, ring, cells", fleet::snapshot(&with_policy)),
            ("no policy", fleet::snapshot(&without)),
            ("the same, breakers, zones, bounded load", fleet::busy_snapshot(with_policy)),
        ];
        for (name, snapshot) in snapshots {
            let mut at = 0;
            let mut one = || {
                at = (at + 1) % SUBJECTS;
                let service = snapshot.service(black_box("orders")).expect("the service is there");
                choose(&snapshot, service, &fleet::get(black_box(&subjects[at])), fleet::NOW)
            };
            let count = counting::allocations(|| (0..SUBJECTS).for_each(|_| _ = black_box(one())));
            println!("decision/{name}/{size}: {count} allocations in {SUBJECTS} decisions");
            group.bench_function(format!("{name}/{size}"), |b| b.iter(&mut one));
        }
    }
}

fn lookups(c: &mut Criterion) {
    let keys: Vec<u64> = subjects().iter().map(|subject| key_hash(subject.as_bytes())).collect();
    let mut group = c.benchmark_group("lookup");
    for size in SIZES {
        let ring = Ring::new(members(size)).expect("within limits");
        let mut at = 0;
        let mut key = || {
            at = (at + 1) % SUBJECTS;
            keys[at]
        };
        group.bench_function(format!("owner/{size}"), |b| b.iter(|| ring.owner(key())));
        group.bench_function(format!("owner and 3 heirs/{size}"), |b| {
            b.iter(|| ring.order(key()).take(4).fold(0_u32, |sum, slot| sum + u32::from(slot)))
        });
    }
}

fn builds(c: &mut Criterion) {
    let mut group = c.benchmark_group("ring of 1000");
    let ring = Ring::new(members(1_000)).expect("within limits");
    group.bench_function("full build", |b| b.iter(|| Ring::new(members(1_000))));
    group.bench_function("one leaves", |b| b.iter(|| ring.changed(members(999))));
    group.bench_function("one joins", |b| b.iter(|| ring.changed(members(1_001))));
    group.bench_function("one changes its weight", |b| {
        b.iter(|| {
            ring.changed(
                members(1_000).map(|member| {
                    if member.id.as_str() == "orders-7" { Member { weight: 70, ..member } } else { member }
                }),
            )
        })
    });
    drop(group);

    let mut group = c.benchmark_group("snapshot, 1000 instances in each of 2 lanes");
    let (one, mut other) = (fleet::table(1_000), fleet::table(1_000));
    other.instances.remove(1_500);
    let mut builder = Builder::new(fleet::locality());
    group.bench_function("one leaves or joins", |b| {
        b.iter(|| (builder.build(&other, fleet::NOW), builder.build(&one, fleet::NOW)).1.1.len())
    });
    group.bench_function("nothing changed", |b| b.iter(|| builder.build(&one, fleet::NOW).1.len()));
}

fn members(count: usize) -> impl Iterator<Item = Member> {
    (0..count).map(|at| Member { id: InstanceId::new(&format!("orders-{at}")).expect("a name"), weight: 100 })
}

criterion_group!(benches, decisions, lookups, builds);
criterion_main!(benches);
