//! The fleet's errors as problems.

use hoarder::controller::RegistryError;
use hoarder::{FleetError, Refusal};

use crate::problem::{Code, Problem, Whereabouts};

impl From<FleetError> for Problem {
    fn from(error: FleetError) -> Self {
        let detail = error.to_string();
        match error {
            FleetError::NoDatabase => Self::new(Code::DatabaseNotFound, detail),
            FleetError::Unconfirmed(unconfirmed) => {
                let holders = unconfirmed.holders.iter().map(ToString::to_string).collect();
                let write = Whereabouts { dot: Some(unconfirmed.dot.to_string()), holders, request: None };
                Self::new(Code::Unconfirmed, format!("{detail}; it is committed and will spread")).with_write(write)
            }
            FleetError::NotEnoughHolders { .. } => Self::new(Code::NotEnoughHolders, detail),
            FleetError::Refused(refusal) => {
                let code = match refusal {
                    Refusal::Condition { current, .. } => return Self::new(Code::ConditionFailed, detail).with_current(current),
                    Refusal::TooLarge { .. } => Code::BatchTooLarge,
                    Refusal::Busy { .. } => Code::QueueFull,
                    Refusal::NotEnoughHolders { .. } => Code::NotEnoughHolders,
                    Refusal::MoreThanHolders { .. } | Refusal::Malformed { .. } => Code::BadRequest,
                    Refusal::Full { .. } => Code::HistoryFull,
                };
                Self::new(code, detail)
            }
            FleetError::NotReady => Self::new(Code::NotReady, detail),
            FleetError::Behind { .. } => Self::new(Code::NotCovered, detail),
            FleetError::Unknown { .. } => Self::new(Code::NoAnswer, detail),
            FleetError::Registry(error) => error.into(),
            FleetError::Closed => Self::new(Code::Closed, detail),
            FleetError::Start { .. } => Self::new(Code::Internal, detail),
        }
    }
}

impl From<RegistryError> for Problem {
    fn from(error: RegistryError) -> Self {
        let detail = error.to_string();
        match error {
            RegistryError::Exists => Self::new(Code::DatabaseExists, detail),
            RegistryError::NotThere => Self::new(Code::DatabaseNotFound, detail),
            RegistryError::Holders { .. } => Self::new(Code::BadRequest, detail).with_limit(hoarder::limits::MAX_HOLDERS.into()),
            RegistryError::NotReady => Self::new(Code::NotReady, detail),
            RegistryError::Unconfirmed => Self::new(Code::RegistryUnconfirmed, detail),
            _ => Self::new(Code::NoAnswer, detail),
        }
    }
}
