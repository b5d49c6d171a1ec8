//! Streams of other protocols over the connections of this node, for what is built on top of it.

use libp2p::{PeerId, Stream, StreamProtocol};

/// Opens and accepts streams of protocols that this crate does not know. Only connected peers are reached.
#[derive(Clone)]
pub struct Streams(libp2p_stream::Control);

impl std::fmt::Debug for Streams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Streams")
    }
}

impl Streams {
    pub(super) fn new(control: libp2p_stream::Control) -> Self {
        Self(control)
    }

    /// The streams that peers open for this protocol; `None` if it is accepted already. What is not taken in time is refused.
    pub fn accept(&mut self, protocol: &'static str) -> Option<libp2p_stream::IncomingStreams> {
        self.0.accept(StreamProtocol::new(protocol)).ok()
    }

    /// Opens a stream to a peer, connecting to it first if an address is known.
    ///
    /// # Errors
    /// When the peer is not reached or does not speak the protocol.
    pub async fn open(&mut self, peer: PeerId, protocol: &'static str) -> Result<Stream, String> {
        self.0.open_stream(peer, StreamProtocol::new(protocol)).await.map_err(|error| error.to_string())
    }
}
