//! Independent runs side by side: one thread per core, each run in one thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// How a job ended: with its result, or with the message of the panic that ended it.
pub type Ended<R> = Result<R, String>;

/// Works the items off on as many threads as asked, and gives each result to `each` on one thread at a time, in the order
/// of their ending. When `each` answers `false` no further item is begun.
pub fn run<T: Copy + Send + Sync, R: Send>(
    items: &[T],
    threads: usize,
    job: impl Fn(T) -> R + Sync,
    each: impl FnMut(T, Ended<R>) -> bool + Send,
) {
    let next = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let each = Mutex::new(each);
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)).copied() else { return };
            let ended = guarded(|| job(item));
            let mut each = each.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if !each(item, ended) {
                stop.store(true, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(work);
        }
    });
}

/// Runs the job.
///
/// # Errors
/// The message of a panic that ended it.
pub fn guarded<R>(job: impl FnOnce() -> R) -> Ended<R> {
    catch_unwind(AssertUnwindSafe(job)).map_err(|payload| {
        let text = payload.downcast_ref::<&str>().map(ToString::to_string);
        text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without a message".to_owned())
    })
}

/// As many threads as there are cores.
#[must_use]
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_worked_off_once_and_a_panic_is_a_result() {
        let items: Vec<u32> = (0..100).collect();
        let mut seen = Vec::new();
        run(
            &items,
            3,
            |item| if item == 7 { panic!("seven") } else { item * 2 },
            |item, ended| {
                assert_eq!(ended, if item == 7 { Err("seven".to_owned()) } else { Ok(item * 2) });
                seen.push(item);
                true
            },
        );
        seen.sort_unstable();
        assert_eq!(seen, items);
    }

    #[test]
    fn nothing_is_begun_after_the_last_one_wanted() {
        let mut seen = 0;
        run(
            &[0; 1000],
            2,
            |_| (),
            |_, _| {
                seen += 1;
                seen < 10
            },
        );
        // Those under way still end.
        assert!((10..=12).contains(&seen), "{seen}");
    }
}
