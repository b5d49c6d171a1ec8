//! Peers of earlier runs: where they were reached, so that a node finds others again when its bootstrap peers are gone.
//!
//! A hint, not data: a file that is missing, damaged or newer is as good as an empty one.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};

use crate::identity::write_synced;
use crate::limits::{MAX_REMEMBERED_ADDRESSES, MAX_REMEMBERED_BYTES, MAX_REMEMBERED_DIALS, REMEMBER_INTERVAL, REMEMBERED_REDIAL};
use crate::net::{DialError, NetHandle, PeerStatus};

const FILE: &str = "peers";
const HEAD: &str = "kvdb-peers 1";

/// Where peers were reached, the latest first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Remembered(Vec<(PeerId, Vec<Multiaddr>)>);

impl Remembered {
    /// Takes in who is connected now; the oldest are forgotten beyond the limit.
    fn learn(&mut self, peers: &[PeerStatus]) {
        let good = peers.iter().filter(|status| status.misbehaviour == 0 && !status.addresses.is_empty());
        let now: Vec<(PeerId, Vec<Multiaddr>)> = good
            .map(|status| {
                let plain = status.addresses.iter().map(without_peer).take(MAX_REMEMBERED_ADDRESSES);
                (status.peer, plain.collect())
            })
            .collect();
        self.0.retain(|(peer, _)| !now.iter().any(|(other, _)| other == peer));
        self.0.splice(0..0, now);
        self.0.truncate(MAX_REMEMBERED_DIALS);
    }

    /// One address a line.
    fn encode(&self) -> String {
        let lines =
            self.0.iter().flat_map(|(peer, addresses)| addresses.iter().map(move |address| format!("{address}/p2p/{peer}\n")));
        std::iter::once(format!("{HEAD}\n")).chain(lines).collect()
    }

    /// What can be read of a file; lines that cannot are left out.
    fn decode(text: &str) -> Self {
        let mut lines = text.lines();
        if lines.next() != Some(HEAD) {
            return Self::default();
        }
        let mut order = Vec::new();
        let mut peers: BTreeMap<PeerId, Vec<Multiaddr>> = BTreeMap::new();
        for address in lines.filter_map(|line| line.parse::<Multiaddr>().ok()) {
            let Some(Protocol::P2p(peer)) = address.iter().last() else { continue };
            if !peers.contains_key(&peer) && order.len() == MAX_REMEMBERED_DIALS {
                continue;
            }
            let known = peers.entry(peer).or_insert_with(|| {
                order.push(peer);
                Vec::new()
            });
            if known.len() < MAX_REMEMBERED_ADDRESSES {
                known.push(without_peer(&address));
            }
        }
        Self(order.into_iter().filter_map(|peer| Some((peer, peers.remove(&peer)?))).collect())
    }
}

fn without_peer(address: &Multiaddr) -> Multiaddr {
    address.iter().filter(|part| !matches!(part, Protocol::P2p(_))).collect()
}

fn load(path: &Path) -> Remembered {
    let mut bytes = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(MAX_REMEMBERED_BYTES).read_to_end(&mut bytes));
    if let Err(error) = read
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "peers of earlier runs cannot be read");
    }
    Remembered::decode(&String::from_utf8_lossy(&bytes))
}

/// Dials the peers of earlier runs, and keeps the file, until the network ends.
pub(crate) async fn run(net: NetHandle, data_dir: PathBuf) {
    let path = data_dir.join(FILE);
    let from = path.clone();
    let Ok(mut remembered) = tokio::task::spawn_blocking(move || load(&from)).await else { return };
    let mut wait = REMEMBERED_REDIAL;
    loop {
        let connected: Vec<PeerId> = net.peers().iter().map(|status| status.peer).collect();
        let missing = remembered.0.iter().filter(|(peer, _)| !connected.contains(peer) && *peer != net.peer_id());
        let dials = futures::future::join_all(missing.map(|(peer, addresses)| dial(&net, *peer, addresses)));
        if dials.await.into_iter().any(|outcome| outcome == Outcome::Closed) {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = net.ended() => return,
        }
        wait = (wait * 2).min(REMEMBER_INTERVAL);
        let before = remembered.clone();
        remembered.learn(&net.peers());
        if remembered != before {
            let (dir, to, text) = (data_dir.clone(), path.clone(), remembered.encode());
            let written = tokio::task::spawn_blocking(move || write_synced(&dir, &to, text.as_bytes())).await;
            if let Ok(Err(error)) = written {
                tracing::warn!(path = %path.display(), %error, "the peers of this run cannot be remembered");
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Tried,
    Closed,
}

/// Tries a peer's addresses one after the other.
async fn dial(net: &NetHandle, peer: PeerId, addresses: &[Multiaddr]) -> Outcome {
    for address in addresses {
        let address = address.clone().with(Protocol::P2p(peer));
        match net.dial(address).await {
            Ok(()) => break,
            Err(DialError::Closed) => return Outcome::Closed,
            Err(error) => tracing::debug!(%peer, %error, "a peer of an earlier run is not there"),
        }
    }
    Outcome::Tried
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn status(peer: PeerId, addresses: &[&str]) -> PeerStatus {
        PeerStatus {
            peer,
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            connected_for: Duration::ZERO,
            outgoing: true,
            agent: String::new(),
            protocol: String::new(),
            syncing: true,
            databases: Vec::new(),
            round_trip: None,
            misbehaviour: 0,
        }
    }

    #[test]
    fn the_latest_peers_are_remembered_up_to_a_limit() {
        let mut remembered = Remembered::default();
        let peers: Vec<PeerId> = (0..=MAX_REMEMBERED_DIALS).map(|_| PeerId::random()).collect();
        for peer in &peers {
            remembered.learn(&[status(*peer, &["/ip4/192.0.2.1/tcp/7071"])]);
        }
        assert_eq!(remembered.0.len(), MAX_REMEMBERED_DIALS);
        assert_eq!(remembered.0.first().unwrap().0, *peers.last().unwrap());
        assert!(!remembered.0.iter().any(|(peer, _)| *peer == peers[0]), "the oldest is forgotten");
        remembered.learn(&[
            status(peers[1], &["/ip4/192.0.2.2/tcp/1"]),
            PeerStatus { misbehaviour: 1, ..status(peers[0], &["/ip4/192.0.2.9/tcp/1"]) },
        ]);
        assert_eq!(remembered.0.first().unwrap(), &(peers[1], vec!["/ip4/192.0.2.2/tcp/1".parse().unwrap()]));
        assert_eq!(Remembered::decode(&remembered.encode()), remembered);
    }

    #[test]
    fn a_damaged_file_is_read_as_far_as_it_makes_sense() {
        let peer = PeerId::random();
        let many = (0..100).map(|n| format!("/ip4/192.0.2.1/tcp/{n}/p2p/{peer}")).collect::<Vec<_>>().join("\n");
        let text = format!("{HEAD}\nnonsense\n/ip4/192.0.2.1/tcp/7\n\u{fffd}\n{many}\n/ip4/192.0");
        let read = Remembered::decode(&text);
        assert_eq!((read.0.len(), read.0[0].0, read.0[0].1.len()), (1, peer, MAX_REMEMBERED_ADDRESSES));
        let crowd: Vec<String> = (0..1_000).map(|_| format!("/ip4/192.0.2.1/tcp/1/p2p/{}", PeerId::random())).collect();
        assert_eq!(Remembered::decode(&format!("{HEAD}\n{}", crowd.join("\n"))).0.len(), MAX_REMEMBERED_DIALS);
        for other in ["", "kvdb-peers 2\n", "\0\0\0"] {
            assert_eq!(Remembered::decode(&format!("{other}{many}")), Remembered::default());
        }
    }
}
