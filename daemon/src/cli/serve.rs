//! `init` and `run`.

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;

use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use super::args::{InitArgs, RunArgs};
use super::failure::{Exit, Failure};
use crate::config::{Config, Raw, default_file};
use crate::run::{self, Daemon, StartError};

/// `kvdb init`
pub(super) fn init(args: &InitArgs) -> Result<(), Failure> {
    let made = runtime()?.block_on(run::init(&args.data_dir, args.config.as_deref()));
    let (peer, file) = made.map_err(Failure::bad_input)?;
    let mut stdout = std::io::stdout().lock();
    let written = writeln!(stdout, "peer {peer}\nconfiguration {file}\nnext: kvdb run --config {file}", file = file.display());
    written.map_err(|error| Failure::output(&error))
}

/// `kvdb run`
pub(super) fn run(args: RunArgs) -> Result<(), Failure> {
    let config = configuration(args)?;
    start_log(&config.log);
    runtime()?.block_on(serve(config))
}

fn configuration(args: RunArgs) -> Result<Config, Failure> {
    let beside: Option<PathBuf> = args.flags.data_dir().map(default_file).filter(|file| file.exists());
    let file = match args.config.or(beside) {
        Some(path) => Raw::read(&path).map_err(Failure::bad_input)?,
        None => Raw::default(),
    };
    let raw = args.flags.into_raw().over(file);
    Config::resolve(raw).map_err(|error| Failure::bad_input(format!("configuration: {error}")))
}

fn start_log(filter: &str) {
    let subscriber = tracing_subscriber::fmt()
        // Checked when the configuration was.
        .with_env_filter(EnvFilter::try_new(filter).unwrap_or_default())
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    // Fails only when there is a subscriber already, which is as good.
    drop(subscriber.try_init());
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::retry(format!("cannot start threads: {error}")))
}

async fn serve(config: Config) -> Result<(), Failure> {
    // Before anything is open, so that no signal meets the default action half way.
    let no_signals = |error| Failure::retry(format!("cannot wait for signals: {error}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(no_signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(no_signals)?;
    for note in &config.notes {
        tracing::info!("{note}");
    }
    let daemon = Daemon::start(config).await.map_err(|error| not_started(&error))?;
    let (url, peer) = (daemon.url(), daemon.node().peer_id());
    tracing::info!(%url, %peer, listen = ?daemon.node().listen_addresses(), "started");
    // For scripts that wait for it; nobody may be reading.
    drop(writeln!(std::io::stdout(), "ready {url} {peer}"));
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("stopping");
    daemon.stop().await.map_err(|error| Failure::new(Exit::Unknown, error))?;
    tracing::info!("stopped");
    Ok(())
}

fn not_started(error: &StartError) -> Failure {
    let message = error.to_string();
    // Another process may go away; everything else stays wrong until somebody changes it.
    let exit = if message.contains("in use") { Exit::Retry } else { Exit::BadInput };
    Failure::new(exit, message)
}
