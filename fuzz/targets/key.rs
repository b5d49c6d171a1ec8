//! The normal form is a fixed point, and only it is taken from others.
#![no_main]

use crdt::{DatabaseName, Dot, Key, Prefix};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(key) = Key::from_normal(data) {
        assert_eq!(key.as_bytes(), data);
        assert_eq!(Key::parse(key.as_str()).unwrap(), key);
    }
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(key) = Key::parse(text) {
        assert_eq!(Key::from_normal(key.as_bytes()).unwrap(), key);
        assert_eq!(Key::parse(key.as_str()).unwrap(), key);
    }
    if let Ok(prefix) = Prefix::parse(text) {
        assert_eq!(Prefix::parse(prefix.as_str()).unwrap().as_str(), prefix.as_str());
        assert!(prefix.start() < prefix.end());
    }
    if let Ok(name) = DatabaseName::parse(text) {
        assert_eq!(name.as_str(), text);
    }
    if let Ok(dot) = text.parse::<Dot>() {
        assert_eq!(dot.to_string().parse::<Dot>().unwrap(), dot);
    }
});
