//! The accept loop: bounded connections, bounded heads, and a stop that lets requests under way finish.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use super::App;
use crate::limits::{DRAIN_TIMEOUT, HEAD_TIMEOUT, MAX_CONNECTIONS, MAX_HEAD_BYTES};

/// A running HTTP interface.
pub struct Server {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    accepting: JoinHandle<()>,
    app: App,
    places: Arc<Semaphore>,
}

impl Server {
    /// Serves on a bound listener.
    ///
    /// # Errors
    /// When the listener does not know its address.
    pub fn start(listener: TcpListener, app: App) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let (stop, stopped) = watch::channel(false);
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let accepting = tokio::spawn(accept(listener, app.clone(), Arc::clone(&places), stopped));
        Ok(Self { address, stop, accepting, app, places })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts no more, lets requests under way finish for a bounded time, then cuts the rest off.
    pub async fn stop(self) {
        self.stop.send_replace(true);
        self.app.stop_streams();
        drop(self.accepting.await);
        let all = u32::try_from(MAX_CONNECTIONS).unwrap_or(u32::MAX);
        if tokio::time::timeout(DRAIN_TIMEOUT, self.places.acquire_many(all)).await.is_err() {
            let open = MAX_CONNECTIONS.saturating_sub(self.places.available_permits());
            tracing::warn!(open, "requests were still under way after {} s and are cut off", DRAIN_TIMEOUT.as_secs());
        }
    }
}

async fn accept(listener: TcpListener, app: App, places: Arc<Semaphore>, mut stopped: watch::Receiver<bool>) {
    loop {
        let accepted = tokio::select! {
            () = told(&mut stopped) => return,
            accepted = async {
                // Never closed, so there is always a place in the end.
                let place = Arc::clone(&places).acquire_owned().await;
                (place, listener.accept().await)
            } => accepted,
        };
        match accepted {
            (Ok(place), Ok((stream, _))) => {
                let (app, stopped) = (app.clone(), stopped.clone());
                tokio::spawn(async move {
                    serve(stream, app, stopped).await;
                    drop(place);
                });
            }
            (_, Err(error)) => {
                // Out of file descriptors, most likely: waiting lets others close theirs.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            (Err(_), _) => return,
        }
    }
}

/// Returns once the server stops, or is gone.
async fn told(stopped: &mut watch::Receiver<bool>) {
    drop(stopped.wait_for(|stop| *stop).await);
}

async fn serve(stream: TcpStream, app: App, mut stopped: watch::Receiver<bool>) {
    // Answers are small and whole; waiting to fill packets only delays them.
    drop(stream.set_nodelay(true));
    let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        let app = app.clone();
        async move { Ok::<_, Infallible>(app.answer(request.map(Body::new)).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = told(&mut stopped) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended");
    }
}
