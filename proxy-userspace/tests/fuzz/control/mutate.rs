//! Mutations of text, and of the values in JSON and YAML.

use serde_json::{Map, Value, json};

use crate::random::Random;

/// Text at which readers of YAML, JSON, numbers and addresses often break.
const TOKENS: [&str; 68] = [
    "",
    "null",
    "~",
    "true",
    "no",
    "[]",
    "{}",
    "[",
    "{",
    "]",
    "}",
    "\"",
    "'",
    ":",
    ": ",
    "- ",
    "? ",
    "|",
    ">-",
    "#",
    "---\n",
    "...\n",
    "%YAML 9.9\n",
    "\t",
    "\r\n",
    "\n",
    "\u{feff}",
    "\0",
    "\u{1b}[31m",
    "\u{202e}",
    "\u{85}",
    "&a ",
    "*a",
    "<<: *a\n",
    "!!binary ",
    "!!int ",
    "0",
    "-1",
    "1.5",
    "1e400",
    ".nan",
    "65535",
    "65536",
    "2147483648",
    "4294967296",
    "18446744073709551616",
    "0x7fffffff",
    "0o17",
    "10.0.0.256",
    "010.0.0.1",
    "0.0.0.0",
    "255.255.255.255",
    "127.0.0.1",
    "169.254.1.1",
    "224.0.0.1",
    "::",
    "::1",
    "::ffff:10.0.0.1",
    "fe80::1%eth0",
    "10.96.0.0/33",
    "0.0.0.0/0",
    "::/0",
    "IPv6",
    "SCTP",
    "Local",
    "9999-12-31T23:59:60Z",
    "-1h",
    "../../etc/passwd",
];

/// The largest text. A repeated part must not grow without bound.
const LARGEST: usize = 1 << 14;

/// Returns a token.
pub fn token(random: &mut Random) -> &'static str {
    TOKENS[random.below(TOKENS.len())]
}

/// Changes one to five places of a text. The result may be no UTF-8.
pub fn text(random: &mut Random, original: &str) -> Vec<u8> {
    let mut text = original.as_bytes().to_vec();
    for _ in 0..=random.below(5) {
        change(random, &mut text);
        text.truncate(LARGEST);
    }
    text
}

fn change(random: &mut Random, text: &mut Vec<u8>) {
    if text.is_empty() {
        return text.extend(token(random).bytes());
    }
    let at = random.below(text.len());
    match random.below(12) {
        0 => text[at] ^= 1 << random.below(8),
        1 => text[at] = random.next() as u8,
        2 => text.truncate(at),
        3 | 4 => drop(text.splice(at..at, token(random).bytes())),
        5 | 6 => {
            let range = word(text, at);
            drop(text.splice(range, token(random).bytes()));
        }
        7 => drop(text.drain(line(text, at))),
        8 => {
            let copy = text[line(text, at)].to_vec();
            let place = line(text, random.below(text.len())).start;
            drop(text.splice(place..place, copy));
        }
        9 => {
            let end = at + random.below(text.len() - at);
            let times = *random.pick(&[2, 3, 20, 500]);
            let copy = text[at..end].repeat(times);
            drop(text.splice(at..end, copy.into_iter().take(LARGEST)));
        }
        10 => {
            let deep = *random.pick(&[3, 200, 5000]);
            let bracket = *random.pick(&["[", "{", "{a: ", "[[", "- ", "? "]);
            drop(text.splice(at..at, bracket.repeat(deep).into_bytes()));
        }
        _ => {
            let indent = random.below(5);
            let start = line(text, at).start;
            drop(text.splice(start..start, vec![b' '; indent]));
        }
    }
}

/// Returns the line of a place, with its end.
fn line(text: &[u8], at: usize) -> std::ops::Range<usize> {
    let start = text[..at].iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let end = text[at..].iter().position(|byte| *byte == b'\n').map_or(text.len(), |end| at + end + 1);
    start..end
}

/// Returns the word of a place: a value or a key.
fn word(text: &[u8], at: usize) -> std::ops::Range<usize> {
    let is_end = |byte: &u8| b" \n,[]{}\"'".contains(byte);
    let start = text[..at].iter().rposition(is_end).map_or(0, |end| end + 1);
    let end = text[at..].iter().position(is_end).map_or(text.len(), |end| at + end);
    start..end.max(start)
}

/// Changes one to four values of a document.
pub fn value(random: &mut Random, mut document: Value) -> Value {
    for _ in 0..=random.below(4) {
        let places = count(&document);
        let mut place = random.below(places);
        change_at(random, &mut document, &mut place);
    }
    document
}

fn count(value: &Value) -> usize {
    1 + match value {
        Value::Object(members) => members.values().map(count).sum(),
        Value::Array(items) => items.iter().map(count).sum(),
        _ => 0,
    }
}

/// Changes the value at a place, counted from the outside. Returns whether it was there.
fn change_at(random: &mut Random, value: &mut Value, place: &mut usize) -> bool {
    if *place == 0 {
        replace(random, value);
        return true;
    }
    *place -= 1;
    match value {
        Value::Object(members) => members.values_mut().any(|member| change_at(random, member, place)),
        Value::Array(items) => items.iter_mut().any(|item| change_at(random, item, place)),
        _ => false,
    }
}

fn replace(random: &mut Random, value: &mut Value) {
    let choice = random.below(10);
    match value {
        Value::Array(items) if choice < 3 && !items.is_empty() => {
            let copy = random.pick(items).clone();
            items.extend(std::iter::repeat_n(copy, *random.pick(&[1, 2, 150])));
        }
        Value::Array(items) if choice < 5 && !items.is_empty() => {
            items.remove(random.below(items.len()));
        }
        Value::Object(members) if choice < 4 && !members.is_empty() => {
            let keys: Vec<String> = members.keys().cloned().collect();
            let removed = members.remove(random.pick(&keys));
            // A member may also come back under another name.
            if choice < 2 {
                members.insert(random.pick(&keys).clone(), removed.unwrap_or_default());
            }
        }
        Value::String(text) if choice < 4 => {
            let at =
                (0..=random.below(text.len() + 1)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            text.insert_str(at, token(random));
        }
        _ => *value = any(random),
    }
}

fn any(random: &mut Random) -> Value {
    match random.below(9) {
        0 => Value::Null,
        1 => json!(random.one_in(2)),
        2 => json!(random.next() >> random.below(64)),
        3 => json!(-i64::from(random.next() as u32)),
        4 => json!(f64::from(random.next() as u32) / 3.0),
        5 => json!([token(random), token(random)]),
        6 => Value::Object(Map::from_iter([(token(random).to_owned(), json!(token(random)))])),
        7 => json!(token(random).repeat(random.below(400))),
        _ => json!(token(random)),
    }
}

#[test]
fn a_mutation_is_the_same_for_the_same_seed() {
    let texts = [7, 7, 8].map(|seed| text(&mut Random::new(seed), "kind: Service\nports: [{port: 80}]\n"));
    assert_eq!(texts[0], texts[1]);
    assert_ne!(texts[0], texts[2]);
}
