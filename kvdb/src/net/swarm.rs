//! libp2p: the one file that knows the swarm. Everything else sees [`Event`]s and peers.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use libp2p::core::transport::timeout::TransportTimeout;
use libp2p::core::transport::{Boxed, OrTransport};
use libp2p::core::{ConnectedPoint, muxing::StreamMuxerBox, upgrade};
use libp2p::gossipsub::{self, IdentTopic, MessageAcceptance, MessageAuthenticity, MessageId, TopicHash, ValidationMode};
use libp2p::identity::Keypair;
use libp2p::swarm::behaviour::toggle::Toggle;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{ConnectionId, DialError, ListenError, NetworkBehaviour, Swarm, SwarmEvent};
use libp2p::{
    Multiaddr, PeerId, Transport as _, allow_block_list, connection_limits, identify, mdns, noise, ping, pnet, tcp, yamux,
};
use sha2::{Digest as _, Sha256};

use super::handshakes::Handshakes;
use super::limits::{
    GOSSIP_FRAME_BYTES, HANDSHAKE_TIMEOUT, MAX_CONNECTIONS, MAX_CONNECTIONS_PER_PEER, MAX_OPEN_DATABASES, MAX_PENDING_OUTGOING,
};
use super::options::{NetworkError, NetworkOptions, is_quic};

/// The protocol family, for identify.
const FAMILY: &str = "kvdb/1";
/// How long a message is remembered, so that it is not taken twice.
const DUPLICATE_CACHE: Duration = Duration::from_secs(120);
/// Connections stay as long as both want: libp2p would close what it thinks idle.
const NEVER: Duration = Duration::from_secs(10 * 365 * 24 * 3_600);

#[derive(NetworkBehaviour)]
struct Behaviour {
    // First, so that a denied connection reaches no other behaviour.
    allow: Toggle<allow_block_list::Behaviour<allow_block_list::AllowedPeers>>,
    limits: connection_limits::Behaviour,
    gossipsub: gossipsub::Behaviour<gossipsub::IdentityTransform, Filter>,
    identify: identify::Behaviour,
    mdns: Toggle<mdns::tokio::Behaviour>,
    ping: ping::Behaviour,
    stream: libp2p_stream::Behaviour,
}

/// Every topic of the right form is tracked, known here or not: a peer says once what it is subscribed to, and a
/// database may be opened here later.
struct Topics;

impl gossipsub::TopicSubscriptionFilter for Topics {
    fn can_subscribe(&mut self, topic: &TopicHash) -> bool {
        let hex = |id: &str| id.len() == 32 && id.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        topic.as_str().strip_prefix("kvdb/1/").is_some_and(hex)
    }
}

type Filter = gossipsub::MaxCountSubscriptionFilter<Topics>;

/// What happened in the network.
#[derive(Debug)]
pub(super) enum Event {
    /// A connection stands.
    Connected { peer: PeerId, connection: ConnectionId, address: Multiaddr, outgoing: bool, count: u32 },
    /// A connection is gone.
    Disconnected { peer: PeerId, left: u32, cause: Option<String> },
    /// A dial led to nothing.
    DialFailed { connection: ConnectionId, ourself: bool, cause: String },
    /// Somebody could not connect.
    IncomingFailed { address: Multiaddr, cause: String },
    /// This node listens there.
    Listening(Multiaddr),
    /// It does so no more.
    ListenEnded(Multiaddr, Option<String>),
    /// A gossip message, for a verdict.
    Gossip { from: PeerId, id: MessageId, topic: String, data: Bytes },
    /// A peer subscribed to a topic.
    Subscribed(PeerId, String),
    /// A peer unsubscribed from a topic.
    Unsubscribed(PeerId, String),
    /// What a peer says of itself.
    Identified { peer: PeerId, agent: String, protocol: String, addresses: Vec<Multiaddr> },
    /// Addresses were found in the local network.
    Found(Vec<(PeerId, Multiaddr)>),
    /// They are not told of any more.
    Lost(Vec<(PeerId, Multiaddr)>),
    /// Round-trip time.
    Ping(PeerId, Duration),
}

/// The swarm.
pub(super) struct Network {
    swarm: Swarm<Behaviour>,
}

impl Network {
    pub(super) fn new(identity: &Keypair, options: &NetworkOptions, exempt: &[PeerId]) -> Result<Self, NetworkError> {
        let setup = |cause: String| NetworkError::Setup { cause };
        let peer = identity.public().to_peer_id();
        let transport = transport(identity, options).map_err(setup)?;
        let allow = options.allow.as_ref().map(|allowed| {
            let mut behaviour = allow_block_list::Behaviour::<allow_block_list::AllowedPeers>::default();
            for peer in allowed {
                behaviour.allow_peer(*peer);
            }
            behaviour
        });
        let mut limits = connection_limits::Behaviour::new(
            connection_limits::ConnectionLimits::default()
                .with_max_pending_outgoing(Some(MAX_PENDING_OUTGOING))
                .with_max_established(Some(MAX_CONNECTIONS))
                .with_max_established_per_peer(Some(MAX_CONNECTIONS_PER_PEER)),
        );
        for peer in exempt {
            limits.bypass_peer_id(peer);
        }
        let mdns = options.mdns.then(|| mdns::tokio::Behaviour::new(mdns::Config::default(), peer)).transpose();
        let mdns = mdns.map_err(|error| setup(format!("mDNS: {error}")))?;
        let agent = format!("kvdb/{}", env!("CARGO_PKG_VERSION"));
        let about_us = identify::Config::new(FAMILY.to_owned(), identity.public()).with_agent_version(agent);
        let behaviour = Behaviour {
            allow: Toggle::from(allow),
            limits,
            gossipsub: gossipsub().map_err(setup)?,
            identify: identify::Behaviour::new(about_us),
            mdns: Toggle::from(mdns),
            ping: ping::Behaviour::new(ping::Config::new()),
            stream: libp2p_stream::Behaviour::new(),
        };
        let config = libp2p::swarm::Config::with_tokio_executor().with_idle_connection_timeout(NEVER);
        let mut swarm = Swarm::new(transport, behaviour, peer, config);
        for address in &options.listen {
            if options.network_key.is_some() && is_quic(address) {
                tracing::warn!(%address, "not listening on QUIC: the network key protects TCP only");
                continue;
            }
            let refused = |cause: String| NetworkError::Listen { address: address.clone(), cause };
            swarm.listen_on(address.clone()).map_err(|error| refused(error.to_string()))?;
        }
        Ok(Self { swarm })
    }

    /// Connections with this peer do not count among those that are limited.
    pub(super) fn exempt(&mut self, peer: &PeerId) {
        self.swarm.behaviour_mut().limits.bypass_peer_id(peer);
    }

    /// For opening and accepting streams.
    pub(super) fn control(&self) -> libp2p_stream::Control {
        self.swarm.behaviour().stream.new_control()
    }

    /// Waits for the next event. Cancel safe.
    pub(super) async fn next(&mut self) -> Event {
        loop {
            let event = self.swarm.select_next_some().await;
            if let SwarmEvent::Behaviour(BehaviourEvent::Ping(ping::Event { connection, result: Err(error), .. })) = &event {
                // TCP alone notices after many minutes that the other machine lost its power.
                tracing::info!(%error, "a peer does not answer: closing its connection");
                self.swarm.close_connection(*connection);
                continue;
            }
            if let Some(event) = translate(event) {
                return event;
            }
        }
    }

    /// Dials; the id comes back with `Connected` or `DialFailed`. None when it is needless or refused at once.
    pub(super) fn dial(&mut self, peer: Option<PeerId>, addresses: Vec<Multiaddr>) -> Result<ConnectionId, String> {
        // From a new port: two nodes that dial each other at once from the ports they listen on have one TCP connection in
        // the end, at both ends of which a dialler waits for a listener's handshake.
        let opts = match (peer, addresses.into_iter()) {
            (Some(peer), addresses) => DialOpts::peer_id(peer)
                .addresses(addresses.collect())
                .condition(PeerCondition::DisconnectedAndNotDialing)
                .allocate_new_port()
                .build(),
            (None, mut addresses) => match addresses.next() {
                Some(address) => DialOpts::unknown_peer_id().address(address).allocate_new_port().build(),
                None => return Err("no address".to_owned()),
            },
        };
        let id = opts.connection_id();
        self.swarm.dial(opts).map(|()| id).map_err(|error| explain_dial(&error))
    }

    pub(super) fn disconnect(&mut self, peer: PeerId) {
        // An error says that it is not connected.
        let _ = self.swarm.disconnect_peer_id(peer);
    }

    pub(super) fn close_connection(&mut self, connection: ConnectionId) {
        self.swarm.close_connection(connection);
    }

    pub(super) fn subscribe(&mut self, topic: &str) -> Result<(), String> {
        let topic = IdentTopic::new(topic);
        self.swarm.behaviour_mut().gossipsub.subscribe(&topic).map(|_| ()).map_err(|error| error.to_string())
    }

    pub(super) fn unsubscribe(&mut self, topic: &str) {
        self.swarm.behaviour_mut().gossipsub.unsubscribe(&IdentTopic::new(topic));
    }

    pub(super) fn publish(&mut self, topic: &str, data: Bytes) -> Result<(), &'static str> {
        use gossipsub::PublishError as E;
        let result = self.swarm.behaviour_mut().gossipsub.publish(IdentTopic::new(topic), data);
        result.map(|_| ()).map_err(|error| match error {
            E::Duplicate => "gossip_publish_duplicate",
            E::NoPeersSubscribedToTopic => "gossip_publish_no_peers",
            E::AllQueuesFull(_) => "gossip_publish_queues_full",
            _ => "gossip_publish_failed",
        })
    }

    pub(super) fn verdict(&mut self, id: &MessageId, from: &PeerId, verdict: super::gossip::Verdict) {
        use super::gossip::Verdict;
        let acceptance = match verdict {
            Verdict::Accept => MessageAcceptance::Accept,
            Verdict::Ignore => MessageAcceptance::Ignore,
            Verdict::Reject => MessageAcceptance::Reject,
        };
        self.swarm.behaviour_mut().gossipsub.report_message_validation_result(id, from, acceptance);
    }
}

fn transport(identity: &Keypair, options: &NetworkOptions) -> Result<Boxed<(PeerId, StreamMuxerBox)>, String> {
    let noise = noise::Config::new(identity).map_err(|error| error.to_string())?;
    let tcp = tcp::tokio::Transport::new(tcp::Config::default().nodelay(true));
    let plain = match &options.network_key {
        Some(key) => {
            tracing::info!("a network key is set: TCP only, QUIC is off");
            let psk = pnet::PreSharedKey::new(key.bytes());
            tcp.and_then(move |socket, _| pnet::PnetConfig::new(psk).handshake(socket))
                .upgrade(upgrade::Version::V1)
                .authenticate(noise)
                .multiplex(yamux::Config::default())
                .boxed()
        }
        None => {
            let tcp = tcp.upgrade(upgrade::Version::V1).authenticate(noise).multiplex(yamux::Config::default()).boxed();
            let quic = libp2p::quic::tokio::Transport::new(libp2p::quic::Config::new(identity))
                .map(|(peer, connection), _| (peer, StreamMuxerBox::new(connection)));
            OrTransport::new(quic, tcp).map(|either, _| either.into_inner()).boxed()
        }
    };
    let dns = libp2p::dns::tokio::Transport::system(plain).map_err(|error| format!("the DNS settings: {error}"))?;
    // Without it whoever connects and says nothing would stay for ever.
    Ok(Handshakes::new(TransportTimeout::new(dns, HANDSHAKE_TIMEOUT).boxed()).boxed())
}

fn gossipsub() -> Result<gossipsub::Behaviour<gossipsub::IdentityTransform, Filter>, String> {
    let config = gossipsub::ConfigBuilder::default()
        .validation_mode(ValidationMode::Anonymous)
        .validate_messages()
        .message_id_fn(|message| MessageId::new(&Sha256::digest(&message.data)))
        .duplicate_cache_time(DUPLICATE_CACHE)
        .max_transmit_size(GOSSIP_FRAME_BYTES)
        .max_control_message_size(GOSSIP_FRAME_BYTES)
        // Whoever is subscribed and connected gets what this node publishes, mesh or not: clusters are small.
        .flood_publish(true)
        .mesh_n_low(4)
        .mesh_n(6)
        .mesh_n_high(12)
        .mesh_outbound_min(1)
        .heartbeat_initial_delay(Duration::from_millis(200))
        .build()
        .map_err(|error| error.to_string())?;
    // The default filter goes deaf above 100 topics.
    let filter =
        Filter { filter: Topics, max_subscribed_topics: MAX_OPEN_DATABASES, max_subscriptions_per_request: MAX_OPEN_DATABASES };
    gossipsub::Behaviour::new_with_subscription_filter(MessageAuthenticity::Anonymous, config, filter).map_err(str::to_owned)
}

fn translate(event: SwarmEvent<BehaviourEvent>) -> Option<Event> {
    Some(match event {
        SwarmEvent::Behaviour(event) => return translate_behaviour(event),
        SwarmEvent::ConnectionEstablished { peer_id, connection_id, endpoint, num_established, .. } => Event::Connected {
            peer: peer_id,
            connection: connection_id,
            address: endpoint.get_remote_address().clone(),
            outgoing: matches!(endpoint, ConnectedPoint::Dialer { .. }),
            count: num_established.get(),
        },
        SwarmEvent::ConnectionClosed { peer_id, num_established, cause, .. } => {
            Event::Disconnected { peer: peer_id, left: num_established, cause: cause.map(|cause| cause.to_string()) }
        }
        SwarmEvent::OutgoingConnectionError { connection_id, error, .. } => Event::DialFailed {
            connection: connection_id,
            ourself: matches!(error, DialError::LocalPeerId { .. }),
            cause: explain_dial(&error),
        },
        SwarmEvent::IncomingConnectionError { send_back_addr, error, .. } => {
            Event::IncomingFailed { address: send_back_addr, cause: explain_listen(&error) }
        }
        SwarmEvent::NewListenAddr { address, .. } => Event::Listening(address),
        SwarmEvent::ExpiredListenAddr { address, .. } => Event::ListenEnded(address, None),
        SwarmEvent::ListenerClosed { addresses, reason, .. } => {
            let address = addresses.into_iter().next()?;
            Event::ListenEnded(address, reason.err().map(|error| error.to_string()))
        }
        SwarmEvent::ListenerError { error, .. } => {
            tracing::warn!(%error, "a listener has an error");
            return None;
        }
        _ => return None,
    })
}

fn translate_behaviour(event: BehaviourEvent) -> Option<Event> {
    Some(match event {
        BehaviourEvent::Gossipsub(gossipsub::Event::Message { propagation_source, message_id, message }) => Event::Gossip {
            from: propagation_source,
            id: message_id,
            topic: message.topic.into_string(),
            data: message.data.into(),
        },
        BehaviourEvent::Gossipsub(gossipsub::Event::Subscribed { peer_id, topic, .. }) => {
            Event::Subscribed(peer_id, topic.into_string())
        }
        BehaviourEvent::Gossipsub(gossipsub::Event::Unsubscribed { peer_id, topic, .. }) => {
            Event::Unsubscribed(peer_id, topic.into_string())
        }
        BehaviourEvent::Identify(identify::Event::Received { peer_id, info, .. }) => Event::Identified {
            peer: peer_id,
            agent: info.agent_version,
            protocol: info.protocol_version,
            addresses: info.listen_addrs,
        },
        BehaviourEvent::Mdns(mdns::Event::Discovered(found)) => Event::Found(found),
        BehaviourEvent::Mdns(mdns::Event::Expired(lost)) => Event::Lost(lost),
        BehaviourEvent::Ping(ping::Event { peer, result: Ok(time), .. }) => Event::Ping(peer, time),
        _ => return None,
    })
}

/// The error with the setting that it likely comes from.
fn explain_dial(error: &DialError) -> String {
    match error {
        DialError::Denied { cause } => {
            explain_denied(cause.downcast_ref::<allow_block_list::NotAllowed>().is_some(), &error.to_string())
        }
        DialError::WrongPeerId { obtained, .. } => {
            format!("{obtained} answers at this address: the /p2p part of the configured address is of another node")
        }
        DialError::Transport(errors) => {
            let all: BTreeSet<String> = errors.iter().map(|(address, error)| format!("{address}: {}", chain(error))).collect();
            explain_handshake(&all.into_iter().collect::<Vec<_>>().join("; "))
        }
        error => error.to_string(),
    }
}

fn explain_listen(error: &ListenError) -> String {
    match error {
        ListenError::Denied { cause } => {
            explain_denied(cause.downcast_ref::<allow_block_list::NotAllowed>().is_some(), &error.to_string())
        }
        ListenError::Transport(error) => explain_handshake(&chain(error)),
        error => error.to_string(),
    }
}

fn explain_denied(not_allowed: bool, text: &str) -> String {
    if not_allowed {
        format!("{text}: the peer is not on this node's allow list (option `allow`)")
    } else {
        format!("{text}: a limit of connections is reached")
    }
}

/// A wrong pre-shared key turns everything after it into noise, so it shows only as a handshake that fails.
fn explain_handshake(text: &str) -> String {
    let network = ["refused", "unreachable", "No route", "not supported"];
    if network.iter().any(|word| text.contains(word)) {
        return text.to_owned();
    }
    let key = "the two nodes likely have different network keys (option `network_key`), or only one of them has one";
    format!("{text}: if the address is right and the node runs, {key}")
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}
