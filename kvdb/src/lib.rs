//! placeholder
#![deny(missing_docs)]

pub mod engine {
    //! placeholder
    pub mod port;
}
pub mod limits;
pub mod store;
