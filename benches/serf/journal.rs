//! What agents say of each other, line by line as they log it: the moment a line arrives is the moment a view changed.

use std::{
    io::{BufRead, BufReader, Read},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::support::until;

/// What one agent says of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// It is there (Serf: `EventMemberJoin`).
    Alive,
    /// It did not answer; Serf's word of the one that probed, which routes to it as before.
    Suspect,
    /// No new request goes to it (lanemesh only).
    Doubtful,
    /// It is dead (Serf: `EventMemberFailed`).
    Down,
    /// It said goodbye.
    Left,
    /// Its tags changed (Serf only).
    Updated,
}

/// One line.
#[derive(Debug, Clone, Copy)]
struct Said {
    at: Instant,
    by: usize,
    of: usize,
    word: Word,
}

#[derive(Default)]
struct Books {
    lines: Vec<Said>,
    /// What each says of each last; `None` before the first word.
    views: Vec<Vec<Option<Word>>>,
    /// When each last came to see everybody else, if it still does. Whom it suspects or doubts is there as well.
    whole: Vec<Option<Instant>>,
    /// Whose death would be no mistake just now.
    guilty: Vec<bool>,
    false_deaths: usize,
}

/// Everything said so far.
#[derive(Clone)]
pub struct Journal {
    books: Arc<Mutex<Books>>,
    size: usize,
}

impl Journal {
    /// Of a cluster of this size; agents are `n0`, `n1`, ...
    pub fn new(size: usize) -> Self {
        let views = vec![vec![None; size]; size];
        let books = Books { views, whole: vec![None; size], guilty: vec![false; size], ..Books::default() };
        Self { books: Arc::new(Mutex::new(books)), size }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads what agent `by` logs until it ends.
    pub fn read(&self, by: usize, log: impl Read + Send + 'static, parse: fn(&str) -> Option<(Word, &str)>) {
        {
            let mut books = self.books();
            books.views[by] = vec![None; self.size];
            books.whole[by] = None;
        }
        let journal = self.clone();
        let listen = move || {
            for line in BufReader::new(log).lines().map_while(Result::ok) {
                let at = Instant::now();
                let Some((word, name)) = parse(&line) else { continue };
                let of = name.strip_prefix('n').and_then(|number| number.parse().ok());
                if let Some(of) = of.filter(|of| *of != by && *of < journal.size) {
                    journal.note(Said { at, by, of, word });
                }
            }
        };
        std::thread::Builder::new().stack_size(256 << 10).spawn(listen).expect("the system can start a thread");
    }

    fn note(&self, said: Said) {
        let mut books = self.books();
        books.lines.push(said);
        if matches!(said.word, Word::Suspect | Word::Updated) {
            return;
        }
        if said.word == Word::Down && !books.guilty[said.of] {
            books.false_deaths += 1;
        }
        books.views[said.by][said.of] = Some(said.word);
        let there = |word: &&Option<Word>| matches!(word, Some(Word::Alive | Word::Doubtful));
        let whole = books.views[said.by].iter().filter(there).count() + 1 == self.size;
        let since = books.whole[said.by].unwrap_or(said.at);
        books.whole[said.by] = whole.then_some(since);
    }

    /// A place in the journal: what is asked of later lines only.
    pub fn mark(&self) -> usize {
        self.books().lines.len()
    }

    /// Marks an agent as one that may be declared dead, or as one that may not.
    pub fn guilty(&self, of: usize, guilty: bool) {
        self.books().guilty[of] = guilty;
    }

    /// Deaths of agents that lived, so far: one for each that said so.
    pub fn false_deaths(&self) -> usize {
        self.books().false_deaths
    }

    /// When the last of these came to see everybody else alive, once all do.
    pub fn all_whole(&self, by: &[usize], limit: Duration) -> Option<Instant> {
        let look = || {
            let books = self.books();
            by.iter().map(|by| books.whole[*by]).collect::<Option<Vec<Instant>>>()?.into_iter().max()
        };
        until(limit, LOOK, look)
    }

    /// How many of these see everybody else alive now.
    pub fn count_whole(&self, by: &[usize]) -> usize {
        let books = self.books();
        by.iter().filter(|by| books.whole[**by].is_some()).count()
    }

    /// When each of `by` first said one of `words` of `of` after the mark, in order of time, once all have.
    pub fn each_says(
        &self,
        mark: usize,
        by: &[usize],
        of: usize,
        words: &[Word],
        limit: Duration,
    ) -> Option<Vec<Instant>> {
        until(limit, LOOK, || {
            let times = self.first_words(mark, of, words);
            by.iter().map(|by| times[*by]).collect::<Option<Vec<Instant>>>().map(|mut times| {
                times.sort();
                times
            })
        })
    }

    /// When anybody first said one of `words` of `of` after the mark.
    pub fn first_says(&self, mark: usize, of: usize, words: &[Word]) -> Option<Instant> {
        self.first_words(mark, of, words).into_iter().flatten().min()
    }

    fn first_words(&self, mark: usize, of: usize, words: &[Word]) -> Vec<Option<Instant>> {
        let mut times = vec![None; self.size];
        let books = self.books();
        for said in books.lines[mark..].iter().filter(|said| said.of == of && words.contains(&said.word)) {
            times[said.by].get_or_insert(said.at);
        }
        times
    }

    /// Those that have another last word of `of` than that it is alive.
    pub fn who_does_not_say_alive(&self, of: usize) -> Vec<usize> {
        let books = self.books();
        (0..self.size).filter(|by| *by != of && books.views[*by][of] != Some(Word::Alive)).collect()
    }
}

/// Between looks; times are those of the lines.
const LOOK: Duration = Duration::from_millis(3);
