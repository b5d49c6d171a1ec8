//! temp
#[derive(Clone)]
pub(crate) struct EngineBackend;
impl EngineBackend {
    pub(crate) fn new(_: crate::engine::EngineHandle<crate::store::RocksStore>, _: crate::store::RocksStore) -> Self {
        Self
    }
}
