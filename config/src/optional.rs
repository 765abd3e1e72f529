//! Keys that may be left to the program. TOML has no null, and a dump has to show every key; so an absent value is
//! written as a word: `auto` where the program finds a value itself, `none` where the feature is then off.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::{
    BoolDeserializer, F64Deserializer, I64Deserializer, StrDeserializer, U64Deserializer,
};
use serde::de::{self, Deserialize, IntoDeserializer};

/// `Option<T>` whose absence is written `$word`.
macro_rules! word_for_none {
    ($module:ident, $word:literal) => {
        pub(crate) mod $module {
            use serde::{Deserialize, Deserializer, Serialize, Serializer};

            #[expect(clippy::ref_option, reason = "serde calls it with a reference to the field")]
            pub(crate) fn serialize<T: Serialize, S: Serializer>(
                value: &Option<T>,
                serializer: S,
            ) -> Result<S::Ok, S::Error> {
                match value {
                    Some(value) => value.serialize(serializer),
                    None => serializer.serialize_str($word),
                }
            }

            pub(crate) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
                deserializer: D,
            ) -> Result<Option<T>, D::Error> {
                deserializer.deserialize_any(super::OrWord { word: $word, marker: std::marker::PhantomData })
            }
        }
    };
}

word_for_none!(auto, "auto");
word_for_none!(none, "none");

struct OrWord<T> {
    word: &'static str,
    marker: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>> de::Visitor<'de> for OrWord<T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a value or \"{}\"", self.word)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Option<T>, E> {
        if text == self.word {
            return Ok(None);
        }
        let inner: StrDeserializer<'_, E> = text.into_deserializer();
        T::deserialize(inner).map(Some)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Option<T>, E> {
        let inner: BoolDeserializer<E> = value.into_deserializer();
        T::deserialize(inner).map(Some)
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Option<T>, E> {
        let inner: I64Deserializer<E> = value.into_deserializer();
        T::deserialize(inner).map(Some)
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Option<T>, E> {
        let inner: U64Deserializer<E> = value.into_deserializer();
        T::deserialize(inner).map(Some)
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Option<T>, E> {
        let inner: F64Deserializer<E> = value.into_deserializer();
        T::deserialize(inner).map(Some)
    }
}

/// A list of texts, or one text with commas (as an environment variable has to write it).
pub(crate) fn list<'de, D: de::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    struct TextOrList;

    impl<'de> de::Visitor<'de> for TextOrList {
        type Value = Vec<String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of texts, or one text with commas")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Vec<String>, E> {
            let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
            Ok(parts.map(str::to_owned).collect())
        }

        fn visit_seq<A: de::SeqAccess<'de>>(self, mut items: A) -> Result<Vec<String>, A::Error> {
            let mut list = Vec::new();
            while let Some(item) = items.next_element()? {
                list.push(item);
            }
            Ok(list)
        }
    }

    deserializer.deserialize_any(TextOrList)
}
