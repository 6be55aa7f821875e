//! The breaker of one instance, as requests drive it.

use proptest::prelude::*;

use super::*;

fn at(ms: u64) -> Mono {
    Mono::from_millis(ms)
}

fn rules() -> Routing {
    Routing::default()
}

fn cell() -> Arc<InstanceCell> {
    Arc::new(InstanceCell::new(7, Arc::default()))
}

/// A request that fails at once; opens the breaker where that is due, as a lane without a floor would.
fn fail(cell: &Arc<InstanceCell>, ms: u64) {
    let Some(ticket) = cell.admit(at(ms), &rules()) else { return };
    let epoch = ticket.epoch();
    if cell.failed(ticket, at(ms), &rules()) {
        cell.open(epoch, false, at(ms), &rules());
    }
}

fn succeed(cell: &Arc<InstanceCell>, ms: u64) {
    if let Some(ticket) = cell.admit(at(ms), &rules()) {
        cell.succeeded(ticket, at(ms), &rules());
    }
}

/// Opened at that moment; returns when it may be tried.
fn opened(cell: &Arc<InstanceCell>, ms: u64) -> u64 {
    (0..3).for_each(|_| fail(cell, ms));
    cell.open_until(at(ms)).expect("three failures open it").millis()
}

#[test]
fn three_failures_of_six_open_it_for_about_ten_seconds() {
    let cell = cell();
    for failed in [true, false, true, false] {
        if failed {
            fail(&cell, 1_000)
        } else {
            succeed(&cell, 1_000)
        }
        assert_eq!(cell.look(at(1_000), &rules()), Look::Well);
    }
    fail(&cell, 1_000);
    assert_eq!(cell.look(at(1_000), &rules()), Look::Shut { signalled: false });
    let until = cell.open_until(at(1_000)).unwrap().millis();
    assert!((9_000..=13_000).contains(&until), "{until}");
    assert!(cell.admit(at(until - 1), &rules()).is_none());
    assert_eq!(cell.look(at(until), &rules()), Look::MayTry { overdue: false });
    assert_eq!(cell.look(at(until + 1_000), &rules()), Look::MayTry { overdue: true });
}

#[test]
fn half_of_a_window_opens_it_too() {
    let cell = cell();
    let only_share = |ms| {
        let ticket = cell.admit(at(ms), &rules()).unwrap();
        let rules = Routing { breaker: Breaker { failures: 0, ..rules().breaker }, ..rules() };
        if ms % 2 == 0 { cell.failed(ticket, at(ms), &rules) } else { cell.succeeded(ticket, at(ms), &rules) }
    };
    let opens: Vec<u64> = (1..=20).filter(|ms| only_share(*ms)).collect();
    assert_eq!(opens, [20]);
}

/// C76: whatever becomes of the request that tries it, the place is free again.
#[test]
fn the_place_of_the_try_is_free_again_however_the_request_ends() {
    let cell = cell();
    let until = opened(&cell, 0);
    for _ in 0..3 {
        let ticket = cell.admit(at(until), &rules()).expect("the place is free");
        assert!(ticket.is_try());
        assert!(cell.admit(at(until), &rules()).is_none(), "one at a time");
        assert_eq!(cell.look(at(until), &rules()), Look::Shut { signalled: false });
        drop(ticket);
        assert_eq!(cell.look(at(until), &rules()), Look::MayTry { overdue: true });
    }
    let lost = cell.admit(at(until), &rules()).unwrap();
    let later = until + 10_000;
    let next = cell.admit(at(later), &rules()).expect("one that is not heard of for an open time is taken as lost");
    drop(lost);
    assert!(cell.admit(at(later), &rules()).is_none(), "the lost one's end does not free the place of the next");
    assert!(cell.succeeded(next, at(later), &rules()));
}

#[test]
fn an_answer_to_the_try_starts_the_ramp_and_a_failure_doubles_the_open_time() {
    let cell = cell();
    let mut until = opened(&cell, 0);
    for full in [20_000, 40_000, 80_000, 160_000, 300_000, 300_000] {
        let ticket = cell.admit(at(until), &rules()).unwrap();
        assert!(!cell.failed(ticket, at(until), &rules()));
        let pause = cell.open_until(at(until)).unwrap().millis() - until;
        assert!((full * 4 / 5..=full * 6 / 5).contains(&pause), "{pause} of {full}");
        until += pause;
    }
    let ticket = cell.admit(at(until), &rules()).unwrap();
    assert!(cell.succeeded(ticket, at(until), &rules()), "it comes back");
    let Look::Ramping { share, fresh: false } = cell.look(at(until), &rules()) else { panic!("the ramp") };
    assert_eq!(share, u32::MAX / 10);
    let Look::Ramping { share: half, .. } = cell.look(at(until + 10_000), &rules()) else { panic!("the ramp") };
    assert!((0.54..0.56).contains(&(f64::from(half) / f64::from(u32::MAX))));
    assert_eq!(cell.look(at(until + 20_000), &rules()), Look::Well);
}

/// Only successes shorten the open time; time alone does not.
#[test]
fn the_open_time_shrinks_on_evidence_only() {
    let pause_after = |successes: u64| {
        let cell = cell();
        let mut until = opened(&cell, 0);
        for _ in 0..3 {
            fail(&cell, until);
            until = cell.open_until(at(until)).unwrap().millis();
        }
        succeed(&cell, until);
        let later = until + 1_000_000;
        (0..=successes).for_each(|_| succeed(&cell, later));
        opened(&cell, later) - later
    };
    let (none, some, many) = (pause_after(0), pause_after(120), pause_after(1_000));
    assert!((128_000..=192_000).contains(&none), "{none}");
    assert!((32_000..=48_000).contains(&some), "{some}");
    assert!((8_000..=12_000).contains(&many), "{many}");
}

#[test]
fn results_of_requests_that_began_before_the_opening_do_not_count() {
    let cell = cell();
    let mut before: Vec<Ticket> = (0..20).map(|_| cell.admit(at(0), &rules()).unwrap()).collect();
    let until = opened(&cell, 10);
    for ticket in before.drain(..10) {
        assert!(!cell.failed(ticket, at(20), &rules()));
    }
    for ticket in before {
        assert!(!cell.succeeded(ticket, at(20), &rules()));
    }
    assert_eq!(cell.open_until(at(20)), Some(at(until)), "neither longer nor over");
}

/// While it is open, a request that has nowhere else to go may still go there, and its answer is as good as a try's.
#[test]
fn an_answer_while_it_is_open_is_evidence() {
    let cell = cell();
    let until = opened(&cell, 0);
    assert!(!cell.failed(cell.force(), at(1_000), &rules()));
    assert_eq!(cell.open_until(at(1_000)), Some(at(until)), "a failure changes nothing");
    assert!(cell.succeeded(cell.force(), at(2_000), &rules()));
    assert!(matches!(cell.look(at(2_000), &rules()), Look::Ramping { .. }));
}

#[test]
fn failures_during_the_ramp_open_it_again_for_longer() {
    let cell = cell();
    let until = opened(&cell, 0);
    succeed(&cell, until);
    let again = opened(&cell, until + 1_000) - (until + 1_000);
    assert!((16_000..=24_000).contains(&again), "{again}");
}

#[test]
fn what_is_held_is_used_and_said_until_it_gets_better() {
    let cell = cell();
    (0..3).for_each(|_| _ = cell.failed(cell.force(), at(0), &rules()));
    assert!(cell.hold() && !cell.hold());
    assert_eq!((cell.look(at(0), &rules()), cell.state(at(0), &rules())), (Look::Well, BreakerState::Held));
    (0..5).for_each(|_| succeed(&cell, 1));
    assert_eq!(cell.state(at(1), &rules()), BreakerState::Closed);
}

#[test]
fn a_new_instance_starts_slowly_and_a_renewed_one_is_clean() {
    let cell = cell();
    opened(&cell, 0);
    cell.start_slowly(at(100));
    assert_eq!(cell.state(at(100), &rules()), BreakerState::SlowStart);
    assert_eq!(cell.look(at(10_100), &rules()), Look::Well);
    succeed(&cell, 10_200);
    opened(&cell, 10_300);
    cell.renew();
    assert_eq!(cell.state(at(10_300), &rules()), BreakerState::Closed);
    (0..2).for_each(|_| fail(&cell, 10_400));
    assert_eq!(cell.state(at(10_400), &rules()), BreakerState::Closed, "nothing on record");
}

#[test]
fn in_flight_counts_guards() {
    let cell = cell();
    let guards = [cell.enter(), cell.enter()];
    assert_eq!(cell.in_flight(), 2);
    drop(guards);
    assert_eq!(cell.in_flight(), 0);
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Begin,
    End(usize, u8),
    Wait(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        Just(Event::Begin),
        (0_usize..8, 0_u8..3).prop_map(|(which, how)| Event::End(which, how)),
        (1_u64..40_000).prop_map(Event::Wait),
    ]
}

proptest! {
    /// Whatever happens: at most one try at a time (but for lost ones), and once nothing is under way an instance that answers is
    /// back for good within an open time and a ramp.
    #[test]
    fn it_always_comes_back(events in prop::collection::vec(event(), 0..120)) {
        let (cell, mut now, mut tickets) = (cell(), 0, Vec::new());
        for event in events {
            match event {
                Event::Begin => {
                    if let Some(ticket) = cell.admit(at(now), &rules()) {
                        if ticket.is_try() {
                            prop_assert_eq!(cell.look(at(now), &rules()), Look::Shut { signalled: false });
                            prop_assert!(cell.admit(at(now), &rules()).is_none());
                        }
                        tickets.push(ticket);
                    }
                }
                Event::End(which, how) if which < tickets.len() => {
                    let ticket = tickets.swap_remove(which);
                    let epoch = ticket.epoch();
                    match how {
                        0 => _ = cell.succeeded(ticket, at(now), &rules()),
                        1 => if cell.failed(ticket, at(now), &rules()) {
                            cell.open(epoch, false, at(now), &rules());
                        },
                        _ => drop(ticket),
                    }
                }
                Event::End(..) => {}
                Event::Wait(ms) => now += ms,
            }
        }
        drop(tickets);
        now = cell.open_until(at(now)).map_or(now, Mono::millis);
        succeed(&cell, now);
        now += 20_000;
        succeed(&cell, now);
        prop_assert_eq!(cell.state(at(now), &rules()), BreakerState::Closed);
    }
}
