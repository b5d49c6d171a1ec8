//! A walk of three nodes, each step drawn from bytes: what fuzzing tries, and what its corpus tries again.

use super::world::{Node, delete, put};

const NODES: usize = 3;

/// Whatever is written, sent, doubled, reordered, lost or restarted: equal sets give equal states, those of a naive fold.
pub fn walk(data: &[u8]) {
    let mut nodes: Vec<Node> = (1..=3).map(Node::new).collect();
    for pair in data.chunks_exact(2).take(200) {
        let (node, other) = (usize::from(pair[1]) % NODES, usize::from(pair[1] >> 2) % NODES);
        step(&mut nodes, node, other, (pair[0], pair[1] >> 5));
    }
    for _ in 0..2 {
        for node in 0..NODES {
            for other in 0..NODES {
                let blocks = nodes[other].blocks();
                nodes[node].deliver(blocks, other as u64);
            }
        }
    }
    let states: Vec<_> = nodes.iter().map(Node::check).collect();
    assert!(states.iter().all(|state| *state == states[0]), "equal sets, different states");
}

fn step(nodes: &mut [Node], node: usize, other: usize, (what, key): (u8, u8)) {
    let key = format!("/k{key}");
    nodes[node].now.0 = nodes[node].now.0.saturating_add(u64::from(what >> 6));
    match what & 7 {
        0 => _ = nodes[node].put(&key, vec![what; usize::from(what >> 3)]),
        1 => _ = nodes[node].delete(&key),
        2 => _ = nodes[node].batch(vec![put(&key, "a"), delete("/k0"), put("/k1", "b")]),
        // One block of the other's, whether it is ready or not.
        3 | 4 => {
            let blocks = nodes[other].blocks();
            if let Some(block) = blocks.get(usize::from(what >> 3) % blocks.len().max(1)) {
                nodes[node].deliver(vec![block.clone()], other as u64);
            }
        }
        // The last ones, backwards and twice.
        5 => {
            let mut blocks: Vec<_> = nodes[other].blocks().into_iter().rev().take(4).collect();
            blocks.extend(blocks.clone());
            nodes[node].deliver(blocks, other as u64);
        }
        6 => nodes[node].reopen(),
        _ => nodes[node].now.0 = nodes[node].now.0.saturating_sub(500),
    }
}
