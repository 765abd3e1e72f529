//! Dense storage with keys that never come to name something else.

/// Names an entry; stale once the entry is removed, even when its place is used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    index: u32,
    generation: u32,
}

#[derive(Debug)]
pub(super) struct Slab<T> {
    entries: Vec<Entry<T>>,
    vacant: Vec<u32>,
}

/// What each look looks at comes first, beside what the value has first, and begins a line of the cache.
#[derive(Debug)]
#[repr(C, align(64))]
struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Slab<T> {
    pub(super) const fn new() -> Self {
        Self { entries: Vec::new(), vacant: Vec::new() }
    }

    pub(super) const fn len(&self) -> usize {
        self.entries.len() - self.vacant.len()
    }

    pub(super) fn insert(&mut self, value: T) -> Key {
        if let Some(index) = self.vacant.pop() {
            let entry = &mut self.entries[index as usize];
            entry.value = Some(value);
            return Key { index, generation: entry.generation };
        }
        let index = self.entries.len() as u32;
        self.entries.push(Entry { generation: 0, value: Some(value) });
        Key { index, generation: 0 }
    }

    pub(super) fn get(&self, key: Key) -> Option<&T> {
        self.entries.get(key.index as usize).filter(|e| e.generation == key.generation)?.value.as_ref()
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.entries.get_mut(key.index as usize).filter(|e| e.generation == key.generation)?.value.as_mut()
    }

    pub(super) fn remove(&mut self, key: Key) -> Option<T> {
        let entry = self.entries.get_mut(key.index as usize).filter(|e| e.generation == key.generation)?;
        let value = entry.value.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        self.vacant.push(key.index);
        Some(value)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.entries.iter().enumerate().filter_map(|(i, e)| {
            let key = Key { index: i as u32, generation: e.generation };
            e.value.as_ref().map(|value| (key, value))
        })
    }
}

impl<T> std::ops::Index<Key> for Slab<T> {
    type Output = T;

    /// # Panics
    /// When the key is stale: the caller holds the key of an entry that it removed.
    fn index(&self, key: Key) -> &T {
        self.get(key).expect("a queue names a removed entry")
    }
}

impl<T> std::ops::IndexMut<Key> for Slab<T> {
    fn index_mut(&mut self, key: Key) -> &mut T {
        self.get_mut(key).expect("a queue names a removed entry")
    }
}
