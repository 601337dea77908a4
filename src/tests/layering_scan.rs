// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which paths a Rust source mentions: `use` trees, paths in expressions and
//! types, `extern crate`, macro calls. A tokenizer, not a compiler: it knows
//! strings, comments, nested modules and grouped imports, and resolves
//! `crate`, `self` and `super` by the module that the file is.

/// One path, resolved.
#[derive(Debug, PartialEq, Eq)]
pub struct Mention {
    pub line: usize,
    /// `crate::engine::units` for what is in this crate, `std::fs::File` and
    /// `libc::mmap` for what is not, `println!` for a macro.
    pub path: String,
    /// Inside `mod tests`.
    pub in_tests: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    /// `::`
    Join,
    Mark(char),
}

struct Scanner {
    tokens: Vec<(usize, Token)>,
    at: usize,
    /// The file's module, then the inline modules that are open, each with the
    /// brace depth it ends at.
    module: Vec<String>,
    inline: Vec<usize>,
    found: Vec<Mention>,
}

/// The mentions in `source`, which is the file of `module` (`["engine", "pins"]`).
pub fn mentions(module: &[String], source: &str) -> Vec<Mention> {
    let mut scanner = Scanner {
        tokens: tokens(source),
        at: 0,
        module: module.to_vec(),
        inline: Vec::new(),
        found: Vec::new(),
    };
    scanner.scan();
    scanner.found
}

impl Scanner {
    fn peek(&self, ahead: usize) -> Option<&Token> {
        self.tokens.get(self.at + ahead).map(|(_, token)| token)
    }

    fn word(&self, ahead: usize) -> Option<&str> {
        match self.peek(ahead) {
            Some(Token::Word(word)) => Some(word),
            _ => None,
        }
    }

    fn line(&self) -> usize {
        self.tokens[self.at.min(self.tokens.len() - 1)].0
    }

    fn scan(&mut self) {
        let mut depth = 0;
        while let Some(token) = self.peek(0).cloned() {
            match token {
                Token::Mark('{') => depth += 1,
                Token::Mark('}') => {
                    depth -= 1;
                    if self.inline.last() == Some(&depth) {
                        self.inline.pop();
                        self.module.pop();
                    }
                }
                // `impl Trait + use<'a>` says what a type captures.
                Token::Word(word) if word == "use" && self.peek(1) != Some(&Token::Mark('<')) => {
                    self.at += 1;
                    self.use_tree(&[]);
                    continue;
                }
                Token::Word(word) if word == "mod" && self.peek(2) == Some(&Token::Mark('{')) => {
                    self.module.push(self.word(1).unwrap_or_default().to_owned());
                    self.inline.push(depth);
                    self.at += 1;
                }
                Token::Word(word) if word == "extern" && self.word(1) == Some("crate") => {
                    self.at += 2;
                    let name = self.word(0).unwrap_or_default().to_owned();
                    self.mention(&[name]);
                }
                Token::Word(_) => self.path(),
                _ => {}
            }
            self.at += 1;
        }
    }

    /// A path that begins here, or a macro call.
    fn path(&mut self) {
        let mut segments = vec![self.word(0).unwrap_or_default().to_owned()];
        while self.peek(1) == Some(&Token::Join)
            && let Some(next) = self.word(2)
        {
            segments.push(next.to_owned());
            self.at += 2;
        }
        let calls = self.peek(1) == Some(&Token::Mark('!'))
            && matches!(self.peek(2), Some(Token::Mark('(' | '[' | '{')));
        if segments.len() > 1 {
            self.mention(&segments);
        } else if calls {
            segments[0].push('!');
            self.mention(&segments);
        }
    }

    /// A `use` tree, up to its `;` or the `,` or `}` of the group it is in.
    fn use_tree(&mut self, prefix: &[String]) {
        let mut path = prefix.to_vec();
        while let Some(token) = self.peek(0).cloned() {
            match token {
                Token::Word(word) if word == "as" => self.at += 1,
                Token::Word(word) => path.push(word),
                Token::Mark('*') => path.push("*".into()),
                Token::Mark('{') => {
                    self.at += 1;
                    while !matches!(self.peek(0), None | Some(Token::Mark('}' | ';'))) {
                        self.use_tree(&path);
                        if self.peek(0) == Some(&Token::Mark(',')) {
                            self.at += 1;
                        }
                    }
                    self.at += 1;
                    return;
                }
                Token::Mark(',' | '}' | ';') => break,
                _ => {}
            }
            self.at += 1;
        }
        self.mention(&path);
    }

    fn mention(&mut self, segments: &[String]) {
        let own = |path: &[String]| {
            let mut all = vec!["crate".to_owned()];
            all.extend_from_slice(path);
            all
        };
        let mut rest = segments;
        let mut full = match rest.first().map(String::as_str) {
            Some("crate" | "$crate" | "sluice") => own(&[]),
            Some("self") => own(&self.module),
            Some("super") => own(&self.module[..self.module.len().saturating_sub(1)]),
            // What `core` and `alloc` have, `std` has under the same name.
            Some("std" | "core" | "alloc") => vec!["std".to_owned()],
            _ => vec![rest.first().cloned().unwrap_or_default()],
        };
        rest = rest.get(1..).unwrap_or_default();
        while rest.first().is_some_and(|word| word == "super") && full.len() > 1 {
            full.pop();
            rest = &rest[1..];
        }
        // `use a::{self}` is `use a`.
        full.extend(rest.iter().filter(|word| *word != "self").cloned());
        let in_tests = self.module.iter().any(|name| name == "tests");
        self.found.push(Mention { line: self.line(), path: full.join("::"), in_tests });
    }
}

/// Words, `::` and single marks with their lines; comments, literals and
/// lifetimes are skipped.
fn tokens(source: &str) -> Vec<(usize, Token)> {
    let text: Vec<char> = source.chars().collect();
    let at = |n: usize| text.get(n).copied().unwrap_or('\0');
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut out = Vec::new();
    let (mut n, mut line) = (0, 1);
    while n < text.len() {
        let begin = n;
        match (at(n), at(n + 1)) {
            ('/', '/') => n += text[n..].iter().take_while(|c| **c != '\n').count(),
            ('/', '*') => {
                let mut depth = 0;
                loop {
                    match (at(n), at(n + 1)) {
                        ('/', '*') => (depth, n) = (depth + 1, n + 2),
                        ('*', '/') => (depth, n) = (depth - 1, n + 2),
                        _ => n += 1,
                    }
                    if depth == 0 || n >= text.len() {
                        break;
                    }
                }
            }
            ('"', _) => n = end_of_string(&text, n),
            ('\'', second) => {
                // A character, or else a lifetime.
                if second == '\\' {
                    n += 3;
                    n += text[n.min(text.len())..].iter().take_while(|c| **c != '\'').count() + 1;
                } else if at(n + 2) == '\'' {
                    n += 3;
                } else {
                    n += 1;
                    n += text[n..].iter().take_while(|c| is_word(**c)).count();
                }
            }
            (':', ':') => {
                out.push((line, Token::Join));
                n += 2;
            }
            (c, _) if is_word(c) => {
                n += text[n..].iter().take_while(|c| is_word(**c)).count();
                let word: String = text[begin..n].iter().collect();
                let raw = word.ends_with('r') && word.len() <= 2;
                if raw && at(n) == '#' && is_word(at(n + 1)) {
                    continue_raw_word(&mut n);
                } else if raw && matches!(at(n), '"' | '#') {
                    n = end_of_raw_string(&text, n);
                } else {
                    out.push((line, Token::Word(word)));
                }
            }
            (c, _) => {
                if !c.is_whitespace() {
                    out.push((line, Token::Mark(c)));
                }
                n += 1;
            }
        }
        n = n.min(text.len());
        line += text[begin..n].iter().filter(|c| **c == '\n').count();
    }
    out
}

/// `r#fn`: the word itself comes next.
fn continue_raw_word(n: &mut usize) {
    *n += 1;
}

fn end_of_string(text: &[char], begin: usize) -> usize {
    let mut n = begin + 1;
    while n < text.len() && text[n] != '"' {
        n += if text[n] == '\\' { 2 } else { 1 };
    }
    n + 1
}

/// From the first `#` or `"` of `r#"…"#`.
fn end_of_raw_string(text: &[char], begin: usize) -> usize {
    let hashes = text[begin..].iter().take_while(|c| **c == '#').count();
    let mut n = begin + hashes + 1;
    while n < text.len() {
        let closes = text[n] == '"'
            && text[n + 1..].iter().take_while(|c| **c == '#').take(hashes).count() == hashes;
        n += 1;
        if closes {
            return n + hashes;
        }
    }
    n
}
