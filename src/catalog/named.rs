//! A table by name that is looked up by hash and walked in the order of names.
//!
//! A datagram looks up its sender several times, and in a large mesh each look into an ordered map compares a dozen names that
//! are nowhere near each other in memory. Walking by hash is no choice either: order is behaviour. So both are kept; what is
//! dear is adding and removing, which happens once in a member's life.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

/// Values by name.
#[derive(Debug, Clone)]
pub(super) struct Named<K, V> {
    /// The order, and where each value is.
    order: BTreeMap<K, usize>,
    /// The same, to look up; never walked.
    places: FxHashMap<K, usize>,
    values: Vec<Option<V>>,
    free: Vec<usize>,
}

impl<K, V> Default for Named<K, V> {
    fn default() -> Self {
        Self { order: BTreeMap::new(), places: FxHashMap::default(), values: Vec::new(), free: Vec::new() }
    }
}

impl<K: Clone + Ord + std::hash::Hash, V> Named<K, V> {
    pub(super) fn get(&self, name: &K) -> Option<&V> {
        self.values[*self.places.get(name)?].as_ref()
    }

    pub(super) fn get_mut(&mut self, name: &K) -> Option<&mut V> {
        self.values[*self.places.get(name)?].as_mut()
    }

    /// Adds a value or replaces the one of the same name, which is given back.
    pub(super) fn insert(&mut self, name: K, value: V) -> Option<V> {
        if let Some(place) = self.places.get(&name) {
            return self.values[*place].replace(value);
        }
        let place = match self.free.pop() {
            Some(place) => {
                self.values[place] = Some(value);
                place
            }
            None => {
                self.values.push(Some(value));
                self.values.len() - 1
            }
        };
        self.places.insert(name.clone(), place);
        self.order.insert(name, place);
        None
    }

    /// The value of a name, made anew where there is none.
    pub(super) fn entry(&mut self, name: K) -> &mut V
    where
        V: Default,
    {
        if !self.places.contains_key(&name) {
            self.insert(name.clone(), V::default());
        }
        self.get_mut(&name).expect("it is there now")
    }

    pub(super) fn remove(&mut self, name: &K) -> Option<V> {
        let place = self.places.remove(name)?;
        self.order.remove(name);
        self.free.push(place);
        self.values[place].take()
    }

    /// Everything, by name.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.order.iter().filter_map(|(name, place)| Some((name, self.values[*place].as_ref()?)))
    }

    /// All values, in any order: for what is done to each by itself.
    pub(super) fn each_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.values.iter_mut().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walked_by_name_whatever_came_and_went() {
        let mut table: Named<&str, u32> = Named::default();
        for (value, name) in ["m", "c", "x", "a"].into_iter().enumerate() {
            assert_eq!(table.insert(name, value as u32), None);
        }
        assert_eq!((table.insert("c", 9), table.remove(&"m"), table.remove(&"m")), (Some(1), Some(0), None));
        *table.entry("b") += 5;
        table.each_mut().for_each(|value| *value += 1);
        assert_eq!(
            table.iter().map(|(name, value)| (*name, *value)).collect::<Vec<_>>(),
            [("a", 4), ("b", 6), ("c", 10), ("x", 3)]
        );
        assert_eq!(table.get_mut(&"x").copied(), Some(3));
        assert_eq!((table.get(&"b"), table.get(&"m")), (Some(&6), None));
    }
}
