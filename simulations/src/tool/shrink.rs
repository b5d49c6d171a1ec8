//! Making a failing run small: items are left out as long as it still fails.

/// The smallest list that could be found: halves are left out first, then smaller parts, down to single items, until no
/// single item can go or `tries` runs were made. `fails` is never asked about the list as it is.
pub fn shrink<T: Clone>(mut items: Vec<T>, tries: &mut usize, mut fails: impl FnMut(&[T]) -> bool) -> Vec<T> {
    let mut part = items.len().div_ceil(2);
    while part > 0 {
        let mut start = 0;
        let mut smaller = false;
        while start < items.len() {
            if *tries == 0 {
                return items;
            }
            *tries -= 1;
            let end = (start + part).min(items.len());
            let mut left = items.clone();
            left.drain(start..end);
            if fails(&left) {
                items = left;
                smaller = true;
            } else {
                start = end;
            }
        }
        part = match (part, smaller) {
            (1, false) => 0,
            (1, true) => 1,
            _ => part / 2,
        };
    }
    items
}

#[cfg(test)]
mod tests {
    use super::shrink;

    #[test]
    fn only_what_is_needed_is_left() {
        let mut tries = 10_000;
        let needed = [3, 500, 501];
        let left = shrink((0..1000).collect(), &mut tries, |items: &[i32]| needed.iter().all(|item| items.contains(item)));
        assert_eq!(left, needed);
        assert!(tries > 9_000, "{tries} tries are left");
    }

    #[test]
    fn a_spent_budget_ends_the_search() {
        let mut tries = 3;
        let left = shrink((0..1000).collect(), &mut tries, |items: &[i32]| items.contains(&0));
        assert!(left.contains(&0));
        assert_eq!(tries, 0);
    }

    #[test]
    fn what_fails_without_anything_needs_nothing() {
        assert!(shrink(vec![1, 2, 3], &mut 100, |_| true).is_empty());
    }
}
