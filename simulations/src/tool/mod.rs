//! What makes a simulation a tool: many seeds side by side, making a failing run small, reports, diagrams.

pub mod diagram;
pub mod measure;
pub mod plot;
pub mod pool;
pub mod record;
pub mod report;
pub mod shrink;
