//! `init` and `run`.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use clap::CommandFactory as _;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use super::args::{Cli, InitArgs, RunArgs};
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
    for name in unknown_variables() {
        tracing::warn!(name, "kvdb knows no such environment variable");
    }
    let runtime = runtime()?;
    let served = runtime.block_on(serve(config));
    // What still runs after a graceful stop was given its time already.
    runtime.shutdown_timeout(Duration::from_secs(1));
    served
}

/// Variables that look like ours and are not, so that a mistyped name is seen. Only a warning, since container systems
/// set such names on their own.
fn unknown_variables() -> Vec<String> {
    fn collect(command: &clap::Command, names: &mut BTreeSet<OsString>) {
        names.extend(command.get_arguments().filter_map(|argument| argument.get_env().map(OsString::from)));
        command.get_subcommands().for_each(|command| collect(command, names));
    }
    let mut known = BTreeSet::new();
    collect(&Cli::command(), &mut known);
    let given = std::env::vars_os().map(|(name, _)| name).filter(|name| !known.contains(name));
    given.filter_map(|name| name.into_string().ok()).filter(|name| name.starts_with("KVDB_")).collect()
}

pub(super) fn configuration(args: RunArgs) -> Result<Config, Failure> {
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
    let daemon = Daemon::start(config).await.map_err(|error| not_started(&error))?;
    let (url, peer) = (daemon.url(), daemon.node().peer_id());
    tracing::info!(%url, %peer, listen = ?daemon.node().listen_addresses(), "started");
    // For scripts that wait for it; nobody may be reading.
    drop(writeln!(std::io::stdout(), "ready {url} {peer}"));
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        cause = daemon.node().store_gone() => {
            drop(daemon.stop().await);
            return Err(Failure::new(Exit::Retry, format!("a store was closed and cannot be opened again: {cause}")));
        }
    }
    tracing::info!("stopping");
    tokio::select! {
        stopped = daemon.stop() => stopped.map_err(|error| Failure::new(Exit::Unknown, error))?,
        _ = terminate.recv() => return Err(stopped_at_once()),
        _ = interrupt.recv() => return Err(stopped_at_once()),
    }
    tracing::info!("stopped");
    Ok(())
}

fn stopped_at_once() -> Failure {
    Failure::new(Exit::Unknown, "a second signal: stopped at once, requests under way were cut off")
}

fn not_started(error: &StartError) -> Failure {
    Failure::new(if error.is_taken() { Exit::Retry } else { Exit::BadInput }, error)
}
