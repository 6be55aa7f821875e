//! Easing: how much of its weight an instance keeps while it has more to do than it can, or than its lane has (REQUIREMENTS R10).
//!
//! The owner alone decides, from its application's load and what the others of the lane announce of theirs, and tells it in the
//! instance's record: so every node has the same ring, and only the eased instance's own keys move (a tenth of them a step, to each
//! one's next).
//!
//! - *Lower* by [`STEP`] when the load, smoothed over 10 s, has for as long been above [`BUSY`] and above 1.15 times the lane's. An instance that is
//!   no busier than the others keeps its keys: they would only carry the load to where it is as high.
//! - *Raise* by [`STEP`] when what it would then have, by proportion, stays a tenth below that limit. So a step up never calls for the
//!   step down again, and a steady demand comes to rest.
//! - At most one step in [`DWELL`], longer than a step needs to show in what is measured, and none the other way within a minute; every change of direction doubles that, up to 16
//!   times, so that instances that shift load to each other come to rest as well. Never below [`LEAST`].
//!
//! Not here: where loads come from (`probe`), who the lane is (`node`).

use std::time::Duration;

use crate::types::{LoadFigure, Mono};

/// Per cent of the weight that one step takes or gives.
pub const STEP: u8 = 10;
/// Per cent of its weight that an instance always keeps.
pub const LEAST: u8 = 50;
/// Shortest time between two steps.
pub const DWELL: Duration = Duration::from_secs(20);
/// A load below this is nobody's concern.
pub const BUSY: f64 = 0.8;
/// Time constant of the smoothing.
const SMOOTH: Duration = Duration::from_secs(10);
/// Shortest time between two steps in different directions.
const TURN: Duration = Duration::from_secs(60);
/// Most that a change of direction makes of [`DWELL`].
const SLOWEST: u32 = 16;
/// After a longer gap what was measured before says nothing.
const GAP: Duration = Duration::from_secs(60);
/// So much more than its lane.
const ABOVE: f64 = 1.15;
/// What a step up must leave room for.
const ROOM: f64 = 0.9;
/// A load that differs so much from what was told, in per cent, is told anew,
const TELL: u16 = 10;
/// but not more often than this.
const TELL_EVERY: Duration = Duration::from_secs(15);
/// Loads above this say nothing more.
const MOST: f64 = 10.0;

/// The easing of one instance.
#[derive(Debug, Clone, PartialEq)]
pub struct Easing {
    load: f64,
    heard: Mono,
    share: u8,
    stepped: Mono,
    /// Since when the load has been above the limit.
    over: Option<Mono>,
    /// Whether the last step was up.
    rose: Option<bool>,
    /// How many times longer steps are apart.
    slow: u32,
    told: LoadFigure,
    told_at: Mono,
}

impl Easing {
    /// From the first load that was measured; 1.0 is all that the application can do.
    pub fn new(load: f64, now: Mono) -> Self {
        let load = clean(load);
        let told = LoadFigure { percent: percent(load), share: 100 };
        Self { load, heard: now, share: 100, stepped: now, over: None, rose: None, slow: 1, told, told_at: now }
    }

    /// What is told of it at present.
    pub fn figure(&self) -> LoadFigure {
        self.told
    }

    /// Another measurement, and the mean load of the others of its lane, as far as they tell; what is to be told anew, if anything is.
    pub fn measured(&mut self, load: f64, others: Option<f64>, now: Mono) -> Option<LoadFigure> {
        let since = now.since(self.heard);
        self.heard = now;
        let fresh = since.as_secs_f64() / (since + SMOOTH).as_secs_f64();
        let fresh = if since > GAP { 1.0 } else { fresh };
        self.load += (clean(load) - self.load) * fresh;
        // Who is alone, or whose lane tells nothing, has nobody who is known to have less to do.
        let limit = others.map_or(BUSY, |others| BUSY.max(ABOVE * clean(others)));
        let over = others.is_some() && self.load > limit;
        self.over = over.then(|| self.over.unwrap_or(now));
        if now.since(self.stepped) >= DWELL * self.slow {
            self.step(limit, now);
        }
        let figure = LoadFigure { percent: percent(self.load), share: self.share };
        let drifted = figure.percent.abs_diff(self.told.percent) >= TELL && now.since(self.told_at) >= TELL_EVERY;
        if self.share == self.told.share && !drifted {
            return None;
        }
        (self.told, self.told_at) = (figure, now);
        Some(figure)
    }

    /// One step where one is due.
    fn step(&mut self, limit: f64, now: Mono) {
        let then = self.load * f64::from(self.share + STEP) / f64::from(self.share);
        let next = match self.over {
            Some(since) if now.since(since) >= SMOOTH => self.share.saturating_sub(STEP).max(LEAST),
            None if then <= ROOM * limit => (self.share + STEP).min(100),
            _ => self.share,
        };
        if next == self.share {
            return;
        }
        let rose = next > self.share;
        if self.rose.is_some_and(|before| before != rose) {
            if now.since(self.stepped) < TURN {
                return;
            }
            self.slow = (self.slow * 2).min(SLOWEST);
        }
        (self.share, self.stepped, self.rose) = (next, now, Some(rose));
    }
}

/// What an application says may be anything.
fn clean(load: f64) -> f64 {
    if load.is_finite() { load.clamp(0.0, MOST) } else { 0.0 }
}

fn percent(load: f64) -> u16 {
    // At most 1,000.
    (load * 100.0).round() as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(second: u64) -> Mono {
        Mono::from_millis(second * 1_000)
    }

    /// Shares of one instance under loads by second.
    fn shares(loads: impl IntoIterator<Item = (f64, Option<f64>)>) -> Vec<u8> {
        let mut easing = Easing::new(0.0, at(0));
        let mut told = Vec::new();
        for (second, (load, others)) in (1..).zip(loads) {
            if let Some(figure) = easing.measured(load, others, at(second)) {
                told.push(figure.share);
            }
        }
        told.dedup();
        told
    }

    #[test]
    fn it_gives_way_step_by_step_and_comes_back() {
        let overloaded = (0..70).map(|_| (1.2, Some(0.5)));
        assert_eq!(shares(overloaded), [100, 90, 80, 70]);
        let passing = (0..70).map(|_| (1.2, Some(0.5))).chain((0..200).map(|_| (0.3, Some(0.3))));
        assert_eq!(shares(passing), [100, 90, 80, 70, 80, 90, 100]);
        assert_eq!(shares((0..600).map(|_| (5.0, Some(0.1)))).last(), Some(&LEAST));
    }

    #[test]
    fn who_is_no_busier_than_the_others_keeps_its_keys() {
        for (load, others) in [(0.79, Some(0.1)), (1.5, Some(1.5)), (1.5, Some(1.4)), (1.5, None)] {
            assert_eq!(shares((0..300).map(|_| (load, others))).iter().min(), Some(&100), "{load} {others:?}");
        }
    }

    #[test]
    fn a_moment_of_work_is_nothing() {
        let spikes = (0..300).map(|second| (if second % 30 < 3 { 3.0 } else { 0.4 }, Some(0.4)));
        assert_eq!(shares(spikes).iter().min(), Some(&100));
    }

    #[test]
    fn after_a_gap_the_past_says_nothing() {
        let mut easing = Easing::new(2.0, at(0));
        easing.measured(2.0, Some(0.1), at(10));
        assert_eq!(easing.measured(0.2, Some(0.1), at(100)).unwrap(), LoadFigure { percent: 20, share: 100 });
    }

    /// A lane in which each instance has its own strength and gets requests by its share, with some noise; what everybody's steps
    /// and loads are in the end.
    fn lane(strengths: &[f64], demand: f64, noise: f64, seconds: u64, seed: u64) -> (Vec<Vec<u8>>, Vec<f64>) {
        let mut chance = seed | 1;
        let mut noisy = move || {
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            1.0 + noise * (((chance >> 33) as f64 / f64::from(1_u32 << 31)) * 2.0 - 1.0)
        };
        let count = strengths.len();
        let mut easings: Vec<Easing> = strengths.iter().map(|_| Easing::new(0.0, at(0))).collect();
        let mut steps = vec![vec![100]; count];
        let mut loads = vec![0.0; count];
        for second in 1..=seconds {
            let figures: Vec<LoadFigure> = easings.iter().map(Easing::figure).collect();
            let weight: f64 = figures.iter().map(|figure| f64::from(figure.share)).sum();
            for at_ in 0..count {
                loads[at_] = demand * f64::from(figures[at_].share) / weight / strengths[at_];
                let others = figures.iter().enumerate().filter(|(other, _)| *other != at_).map(|(_, figure)| figure);
                let (sum, weights) = others.fold((0.0, 0.0), |(sum, weights), figure| {
                    let share = f64::from(figure.share);
                    (sum + share * f64::from(figure.percent) / 100.0, weights + share)
                });
                let others = (weights > 0.0).then_some(sum / weights);
                let told = easings[at_].measured(loads[at_] * noisy(), others, at(second));
                steps[at_].extend(told.map(|figure| figure.share));
            }
        }
        steps.iter_mut().for_each(|steps| steps.dedup());
        (steps, loads)
    }

    #[test]
    fn a_weak_instance_sheds_until_it_can_bear_the_rest_and_nobody_swings() {
        let (steps, loads) = lane(&[0.6, 1.0, 1.0, 1.0], 2.6, 0.1, 900, 7);
        assert!(steps[0].is_sorted_by(|a, b| a >= b) && *steps[0].last().unwrap() < 100, "{steps:?}");
        assert!(steps[1..].iter().all(|steps| steps == &[100]), "{steps:?}");
        assert!(loads[0] < 1.15 * loads[1].max(BUSY / 1.15) * 1.1, "{loads:?}");
    }

    proptest! {
        /// Whatever is measured: shares keep within their bounds, and change by one step at a time, not before the last has shown.
        #[test]
        fn steps_are_bounded(loads in prop::collection::vec((prop::num::f64::ANY, prop::option::of(prop::num::f64::ANY), 0_u64..90), 1..200)) {
            let mut easing = Easing::new(0.5, at(0));
            let (mut now, mut stepped, mut share) = (0, 0, 100_u8);
            for (load, others, passes) in loads {
                now += passes;
                if let Some(figure) = easing.measured(load, others, at(now)) {
                    prop_assert!((LEAST..=100).contains(&figure.share) && figure.percent <= 1_000);
                    if figure.share != share {
                        prop_assert_eq!(figure.share.abs_diff(share), STEP);
                        prop_assert!(now - stepped >= DWELL.as_secs());
                        (stepped, share) = (now, figure.share);
                    }
                }
            }
        }

        /// Whatever the strengths and a steady demand: each instance's share goes one way, or turns once or twice while others settle.
        #[test]
        fn a_steady_demand_comes_to_rest(strengths in prop::collection::vec(0.3_f64..1.0, 2..8), busy in 0.2_f64..1.5, seed in any::<u64>()) {
            let demand = busy * strengths.iter().sum::<f64>();
            let (steps, _) = lane(&strengths, demand, 0.05, 1_500, seed);
            for steps in &steps {
                let turns = steps.windows(3).filter(|three| (three[0] < three[1]) != (three[1] < three[2])).count();
                prop_assert!(turns <= 2, "{:?}", steps);
            }
        }
    }
}
