//! temp
#![allow(missing_docs)]
use libp2p::Multiaddr;
use std::collections::BTreeMap;
#[derive(Debug, thiserror::Error)]
#[error("net")]
pub struct NetworkError;
#[derive(Debug, thiserror::Error)]
#[error("net")]
pub enum DialError {
    NoNetwork,
}
#[derive(Debug, Clone)]
pub struct PeerStatus;
#[derive(Debug, Clone)]
pub struct NetworkKey;
#[derive(Debug, Clone, Default)]
pub struct NetworkOptions {
    pub listen: Vec<Multiaddr>,
}
#[derive(Debug, Clone)]
pub struct NetHandle;
impl NetHandle {
    pub fn listen_addresses(&self) -> Vec<Multiaddr> {
        vec![]
    }
    pub fn peers(&self) -> Vec<PeerStatus> {
        vec![]
    }
    pub fn counters(&self) -> BTreeMap<&'static str, u64> {
        BTreeMap::new()
    }
    pub async fn dial(&self, _: Multiaddr) -> Result<(), DialError> {
        Err(DialError::NoNetwork)
    }
    pub async fn close(&self) {}
    pub fn stop(&self) {}
}
pub async fn spawn<B>(
    _: NetworkOptions,
    _: libp2p::identity::Keypair,
    _: B,
    _: crate::engine::NewsFeed,
) -> Result<NetHandle, NetworkError> {
    Err(NetworkError)
}
