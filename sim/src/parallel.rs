//! Many simulations at a time. One is one thread, for ever; several know nothing of each other.

use std::{
    collections::BTreeMap,
    sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread::available_parallelism,
};

/// Runs a job for each, on so many threads; `each` gets the results in the order of the jobs, each as soon as those before it
/// are there, with the number of jobs that are done.
pub fn in_order<T: Sync, R: Send>(
    jobs: &[T],
    threads: usize,
    run: impl Fn(&T) -> R + Sync,
    mut each: impl FnMut(usize, R),
) {
    let (next, run, threads) = (AtomicUsize::new(0), &run, threads.clamp(1, jobs.len().max(1)));
    let (done, results) = mpsc::sync_channel(threads);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (done, next) = (done.clone(), &next);
            scope.spawn(move || {
                while let at = next.fetch_add(1, Ordering::Relaxed)
                    && let Some(job) = jobs.get(at)
                    && done.send((at, run(job))).is_ok()
                {}
            });
        }
        drop(done);
        let (mut early, mut wanted) = (BTreeMap::new(), 0);
        for (finished, (at, result)) in (1..).zip(results) {
            early.insert(at, result);
            while let Some(result) = early.remove(&wanted) {
                wanted += 1;
                each(finished, result);
            }
        }
    });
}

/// As many threads as there are processors for them.
pub fn threads() -> usize {
    available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order_whatever_takes_longest() {
        let jobs: Vec<u64> = (0..200).collect();
        let mut order = Vec::new();
        let spin = |job: &u64| (0..(200 - job) * 50).fold(*job, |sum, step| std::hint::black_box(sum ^ step) ^ step);
        in_order(&jobs, 3, spin, |_, result| order.push(result));
        assert_eq!(order, jobs);
        in_order(&[] as &[u64], 3, spin, |_, _| panic!("there is nothing to do"));
    }
}
