//! Parallel work on machines: as many at a time as there are processors.

use std::panic::resume_unwind;
use std::sync::Mutex;
use std::thread;

/// Does the work of every item. The results are in the items' order.
///
/// A machine keeps hardly more than one processor busy, because most of them verify programs or
/// wait.
pub fn in_parallel<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let next = Mutex::new(items.iter().enumerate());
    let take = || next.lock().ok()?.next();
    let run = || {
        let mut done = Vec::new();
        while let Some((place, item)) = take() {
            done.push((place, work(item)));
        }
        done
    };
    let mut done: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(run)).collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
            .collect()
    });
    done.sort_by_key(|(place, _)| *place);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_items() {
        let items: Vec<u64> = (0..20).collect();
        let results = in_parallel(&items, |item| {
            thread::sleep(std::time::Duration::from_millis(20 - item));
            item * 2
        });
        assert_eq!(results, items.iter().map(|item| item * 2).collect::<Vec<_>>());
    }
}
