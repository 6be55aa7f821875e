//! Seeds of the swarm that once found something. `lanemesh-sim check` plays them for ever: what was mended may break again.

use serde::Deserialize;

use crate::swarm::Size;

/// One of them.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seed {
    /// The seed.
    pub seed: u64,
    /// Hosts of the drawn mesh.
    pub nodes: u32,
    /// Virtual minutes.
    pub minutes: f64,
    /// 1, or 2.
    pub level: u8,
    /// What it found.
    pub found: String,
}

impl Seed {
    /// What it is drawn for.
    pub fn size(&self) -> Size {
        Size { nodes: self.nodes, minutes: self.minutes }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Corpus {
    seed: Vec<Seed>,
}

/// All of them, as they are in the repository.
pub fn corpus() -> Vec<Seed> {
    toml::from_str::<Corpus>(include_str!("../corpus.toml")).expect("the corpus is in order").seed
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_kept_seed_can_be_drawn() {
        for kept in super::corpus() {
            let scenario =
                crate::scenario::Scenario { level: kept.level, ..crate::swarm::draw(kept.seed, kept.size()) };
            scenario.check().unwrap_or_else(|fault| panic!("seed {}: {fault:#}", kept.seed));
        }
    }
}
