//! Connections that are being accepted, bounded: when there are too many, the oldest of the address with the most of them
//! makes room. Whoever connects and says nothing so keeps nobody out.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::FutureExt as _;
use futures::future::{BoxFuture, Either, select};
use libp2p::Multiaddr;
use libp2p::core::transport::{Boxed, DialOpts, ListenerId, TransportError, TransportEvent};
use libp2p::core::{Transport, multiaddr::Protocol};
use tokio::sync::oneshot;

use super::limits::MAX_PENDING_INCOMING;

/// A transport with a bound on handshakes.
pub(super) struct Handshakes<O> {
    inner: Boxed<O>,
    waiting: Waiting,
}

impl<O> Handshakes<O> {
    pub(super) fn new(inner: Boxed<O>) -> Self {
        Self { inner, waiting: Waiting::default() }
    }
}

/// The handshakes under way, oldest first, each with the way to end it.
#[derive(Debug, Default)]
struct Waiting(VecDeque<(Option<IpAddr>, oneshot::Sender<()>)>);

impl Waiting {
    /// Adds one; what it is given says when it must make room.
    fn add(&mut self, from: &Multiaddr) -> oneshot::Receiver<()> {
        self.0.retain(|(_, end)| !end.is_closed());
        while self.0.len() >= MAX_PENDING_INCOMING {
            let mut counts: BTreeMap<Option<IpAddr>, usize> = BTreeMap::new();
            for (ip, _) in &self.0 {
                *counts.entry(*ip).or_default() += 1;
            }
            let most = counts.into_iter().max_by_key(|(_, count)| *count).map(|(ip, _)| ip);
            let oldest = self.0.iter().position(|(ip, _)| Some(*ip) == most).unwrap_or(0);
            if let Some((_, end)) = self.0.remove(oldest) {
                // One that has ended meanwhile does not hear of it.
                let _ = end.send(());
            }
        }
        let (end, ended) = oneshot::channel();
        self.0.push_back((ip_of(from), end));
        ended
    }
}

fn ip_of(address: &Multiaddr) -> Option<IpAddr> {
    address.iter().find_map(|part| match part {
        Protocol::Ip4(ip) => Some(ip.into()),
        Protocol::Ip6(ip) => Some(ip.into()),
        _ => None,
    })
}

impl<O: Send + 'static> Transport for Handshakes<O> {
    type Output = O;
    type Error = io::Error;
    type ListenerUpgrade = BoxFuture<'static, io::Result<O>>;
    type Dial = <Boxed<O> as Transport>::Dial;

    fn listen_on(&mut self, id: ListenerId, address: Multiaddr) -> Result<(), TransportError<io::Error>> {
        self.inner.listen_on(id, address)
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        self.inner.remove_listener(id)
    }

    fn dial(&mut self, address: Multiaddr, opts: DialOpts) -> Result<Self::Dial, TransportError<io::Error>> {
        self.inner.dial(address, opts)
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<TransportEvent<Self::ListenerUpgrade, io::Error>> {
        let this = &mut *self;
        let waiting = &mut this.waiting;
        Pin::new(&mut this.inner).poll(cx).map(|event| {
            let ended = match &event {
                TransportEvent::Incoming { send_back_addr, .. } => Some(waiting.add(send_back_addr)),
                _ => None,
            };
            event.map_upgrade(|upgrade| match ended {
                Some(ended) => bounded(upgrade, ended),
                None => upgrade,
            })
        })
    }
}

/// A handshake that ends when it must make room.
fn bounded<O: Send + 'static>(
    upgrade: impl Future<Output = io::Result<O>> + Send + Unpin + 'static,
    ended: oneshot::Receiver<()>,
) -> BoxFuture<'static, io::Result<O>> {
    async move {
        match select(upgrade, ended).await {
            Either::Left((outcome, _)) => outcome,
            Either::Right((Ok(()), _)) => {
                let what = format!("others want to connect, and {MAX_PENDING_INCOMING} handshakes were under way");
                Err(io::Error::new(io::ErrorKind::ConnectionAborted, what))
            }
            // Nobody is left who could end it.
            Either::Right((Err(_), upgrade)) => upgrade.await,
        }
    }
    .boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(n: u8) -> Multiaddr {
        format!("/ip4/192.0.2.{n}/tcp/1").parse().unwrap()
    }

    #[tokio::test]
    async fn the_oldest_of_the_busiest_address_makes_room() {
        let mut waiting = Waiting::default();
        let mut honest = waiting.add(&from(1));
        let mut silent: VecDeque<_> = (1..MAX_PENDING_INCOMING).map(|_| waiting.add(&from(2))).collect();
        for _ in 0..1_000 {
            silent.push_back(waiting.add(&from(2)));
            let oldest = silent.pop_front().unwrap();
            assert_eq!(oldest.await, Ok(()));
            assert!(honest.try_recv().is_err(), "it is not the honest one that goes");
        }
        assert_eq!(waiting.0.len(), MAX_PENDING_INCOMING);
        // Those that are done take no room.
        drop(silent);
        waiting.add(&from(3));
        assert!(waiting.0.len() <= 2);
    }

    #[tokio::test]
    async fn a_handshake_that_makes_room_says_why_and_another_one_goes_on() {
        let (end, ended) = oneshot::channel();
        end.send(()).unwrap();
        let error = bounded(futures::future::pending::<io::Result<()>>(), ended).await.unwrap_err();
        assert!(error.to_string().contains("64 handshakes"), "{error}");
        let (end, ended) = oneshot::channel();
        drop(end);
        assert!(bounded(futures::future::ready(Ok::<_, io::Error>(1)), ended).await.is_ok());
    }
}
