//! Wires a node to its HTTP interface, and takes them down in order.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use hoarder::{Fleet, FleetError};
use kvdb::limits::MAX_OPEN_DATABASES;
use kvdb::store::StoreOpenError;
use kvdb::{CloseError, DatabaseName, NetworkError, Node, NodeOptions, OpenDatabaseError, OpenError, PeerId, ReadError};
use thiserror::Error;
use tokio::net::TcpListener;

use crate::config::{self, Config, FleetConfig, default_file};
use crate::http::{App, Server};
use crate::limits::FLEET_GOOD_BYE;

/// A running daemon.
pub struct Daemon {
    node: Node,
    fleet: Option<Fleet>,
    server: Server,
}

/// Why a daemon did not start. Nothing was changed, unless the store says so.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// The HTTP address cannot be had.
    #[error("cannot listen on {address}: {source}; choose another http.listen")]
    Http {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The node cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The catalogue cannot be read.
    #[error(transparent)]
    Catalogue(#[from] ReadError),
    /// The fleet cannot be joined.
    #[error("fleet: {0}")]
    Fleet(#[from] FleetError),
    /// The members' list does not have this node.
    #[error("fleet.members does not have this node, {peer}")]
    NoMember {
        /// This node.
        peer: PeerId,
    },
    /// A database cannot be opened.
    #[error("database {name}: {source}")]
    Database {
        /// Its name.
        name: DatabaseName,
        /// Why.
        source: OpenDatabaseError,
    },
}

impl StartError {
    /// Whether another process has what is needed: it may go away, while everything else stays wrong until it is changed.
    pub fn is_taken(&self) -> bool {
        match self {
            Self::Http { source, .. } => source.kind() == ErrorKind::AddrInUse,
            Self::Open(OpenError::Store(StoreOpenError::Locked { .. }) | OpenError::Network(NetworkError::PortTaken { .. })) => {
                true
            }
            _ => false,
        }
    }
}

impl Daemon {
    /// Binds the HTTP address, opens the node and its databases, and serves.
    ///
    /// # Errors
    /// See [`StartError`]; what was opened is closed again.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        // First what others may have taken, so that nothing is made in vain.
        let address = config.http.listen;
        let no_http = |source| StartError::Http { address, source };
        let listener = TcpListener::bind(address).await.map_err(no_http)?;
        let directory = config.node.data_dir.clone();
        let node = Node::open(config.node).await?;
        let started = match &config.fleet {
            // What is on disk is opened by the fleet, which knows what this node is to hold.
            Some(fleet) => join(&node, directory, fleet).await.map(Some),
            None => open_databases(&node, config.databases.clone()).await.map(|()| None),
        };
        let fleet = match started {
            Ok(fleet) => fleet,
            Err(error) => {
                drop(node.close().await);
                return Err(error);
            }
        };
        let app = App::new(node.clone(), &config.http, fleet.clone().zip(config.fleet.as_ref()));
        app.create_databases(config.databases);
        let server = Server::start(listener, app).map_err(no_http)?;
        Ok(Self { node, fleet, server })
    }

    /// The HTTP interface's URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.server.address())
    }

    /// The node.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Lets requests under way finish, then closes the node.
    ///
    /// # Errors
    /// When the node's last sync failed.
    pub async fn stop(self) -> Result<(), CloseError> {
        self.server.stop().await;
        if let Some(fleet) = &self.fleet {
            // The others need not find out by themselves.
            drop(tokio::time::timeout(FLEET_GOOD_BYE, fleet.close()).await);
        }
        self.node.close().await
    }
}

/// Becomes a member of the fleet.
async fn join(node: &Node, directory: PathBuf, config: &FleetConfig) -> Result<Fleet, StartError> {
    let mut options = config.options.clone();
    let peer = node.peer_id();
    // A fleet of its own.
    if options.members.is_empty() {
        options.members.insert(peer);
    }
    if !options.members.contains(&peer) {
        return Err(StartError::NoMember { peer });
    }
    Ok(Fleet::start(node.clone(), directory, options).await?)
}

/// Opens what is configured and what is there already, so that a restart replicates what was replicated before.
async fn open_databases(node: &Node, configured: Vec<DatabaseName>) -> Result<(), StartError> {
    let there = node.databases()?.into_iter().map(|info| info.name);
    let (needed, mut closed) = (configured.len(), 0);
    for (at, name) in configured.into_iter().chain(there).enumerate() {
        match node.database(&name).await {
            Ok(_) => {}
            Err(source @ OpenDatabaseError::Unavailable { .. }) => {
                tracing::error!(%name, error = %source, "a database is not served");
            }
            // One that is there is opened when it is asked for, if there is room then.
            Err(OpenDatabaseError::TooManyOpen { .. }) if at >= needed => closed += 1,
            Err(source) => return Err(StartError::Database { name, source }),
        }
    }
    if closed > 0 {
        tracing::warn!(closed, limit = MAX_OPEN_DATABASES, "databases are not open, and not replicated: too many are there");
    }
    Ok(())
}

/// Why `kvdb init` made nothing.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum InitError {
    /// There is a configuration or a node already.
    #[error("{path} exists already; kvdb init overwrites nothing")]
    Exists {
        /// What is there.
        path: PathBuf,
    },
    /// A file cannot be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The node cannot be made.
    #[error(transparent)]
    Open(#[from] OpenError),
}

/// Makes a node: its directory with identity and empty store, and a commented configuration.
///
/// # Errors
/// See [`InitError`].
pub async fn init(data_dir: &Path, file: Option<&Path>) -> Result<(PeerId, PathBuf), InitError> {
    let file = file.map_or_else(|| default_file(data_dir), Path::to_path_buf);
    for path in [&file, &data_dir.join("identity.key")] {
        if path.symlink_metadata().is_ok() {
            return Err(InitError::Exists { path: path.clone() });
        }
    }
    let data_dir = std::path::absolute(data_dir).map_err(|source| InitError::Write { path: data_dir.into(), source })?;
    let node = Node::open(NodeOptions::new(&data_dir)).await?;
    let peer = node.peer_id();
    drop(node.close().await);
    write_new(&file, &config::template(&data_dir)).map_err(|source| InitError::Write { path: file.clone(), source })?;
    Ok((peer, file))
}

/// Writes a file that must not be there yet, for its owner only: it will hold secrets.
fn write_new(path: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write as _;
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}
