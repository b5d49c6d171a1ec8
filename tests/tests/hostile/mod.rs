//! Peers that want to hurt, over real connections, against a node in a process of its own.
//!
//! In each: the victim goes on serving, its memory stays within a bound, honest nodes end equal, and who breaks the
//! protocol is told why and cut off.

mod arena;
mod blocks;
mod frames;
mod gossip;
mod peer;
mod storms;
