//! BM25: how well each document of a small corpus answers a query.
//!
//! `score(d, q) = sum_{t in q} idf(t) * f(t, d) * (k1 + 1) / (f(t, d) + k1 * (1 - b + b * |d| / avgdl))` with
//! `idf(t) = ln(1 + (N - n(t) + 0.5) / (n(t) + 0.5))`: Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and
//! Beyond" (2009), section 3.4, with the never negative `idf` of Lucene. `f(t, d)` counts the term in the document, `|d|` is the
//! document's length in terms, `avgdl` the mean length, `N` the number of documents and `n(t)` that of those holding the term.
//!
//! Own code, because results must be the same to the last bit on every run: the crates hash terms to 32 bits or order ties by chance.

use std::collections::{BTreeMap, HashMap};

/// An inverted index with the parameters of its scores.
#[derive(Clone, Debug)]
pub struct Bm25 {
    /// Documents of each term and how often it occurs there.
    postings: HashMap<String, Vec<(usize, f64)>>,
    /// Length of each document in terms.
    lengths: Vec<f64>,
    mean_length: f64,
    k1: f64,
    b: f64,
}

/// Terms of a text: its runs of letters and digits, in lower case. No stemming, no stop words.
pub fn terms(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
}

impl Bm25 {
    /// Indexes documents. `k1` (0 or more) says how much repetition counts, `b` (0 to 1) how much length is held against a document.
    pub fn new<'a>(documents: impl IntoIterator<Item = &'a str>, k1: f64, b: f64) -> Self {
        let mut postings: HashMap<String, Vec<(usize, f64)>> = HashMap::new();
        let mut lengths = Vec::new();
        for (index, text) in documents.into_iter().enumerate() {
            let mut counts: BTreeMap<String, f64> = BTreeMap::new();
            for term in terms(text) {
                *counts.entry(term).or_default() += 1.0;
            }
            lengths.push(counts.values().sum());
            for (term, count) in counts {
                postings.entry(term).or_default().push((index, count));
            }
        }
        let mean_length = lengths.iter().sum::<f64>() / (lengths.len() as f64).max(1.0);
        Self {
            postings,
            lengths,
            mean_length,
            k1,
            b,
        }
    }

    /// Documents that hold a term of the query and their scores, best first; of equal ones the earlier. A term that the query repeats
    /// counts once.
    pub fn search(&self, query: &str) -> Vec<(usize, f64)> {
        let mut scores: BTreeMap<usize, f64> = BTreeMap::new();
        let mut seen: Vec<String> = Vec::new();
        for term in terms(query) {
            let Some(postings) = self.postings.get(&term).filter(|_| !seen.contains(&term)) else {
                continue;
            };
            seen.push(term);
            let (all, holding) = (self.lengths.len() as f64, postings.len() as f64);
            let idf = ((all - holding + 0.5) / (holding + 0.5)).ln_1p();
            for &(document, count) in postings {
                let length = self.lengths[document] / self.mean_length;
                let saturation = self.k1 * (1.0 - self.b + self.b * length);
                *scores.entry(document).or_default() += idf * count * (self.k1 + 1.0) / (count + saturation);
            }
        }
        let mut found: Vec<(usize, f64)> = scores.into_iter().collect();
        found.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_those_computed_by_hand() {
        // N = 3, lengths 3, 1, 4, mean 8/3.
        let index = Bm25::new(["cat Cat dog", "dog!", "bird bird, fish fish"], 1.2, 0.75);
        let check = |query: &str, expected: &[(usize, f64)]| {
            let found = index.search(query);
            assert_eq!(found.len(), expected.len(), "{query}: {found:?}");
            for (found, expected) in found.iter().zip(expected) {
                assert_eq!(found.0, expected.0, "{query}");
                assert!(
                    (found.1 - expected.1).abs() < 1e-9,
                    "{query}: {found:?} {expected:?}"
                );
            }
        };
        // idf(dog) = ln(1 + 1.5 / 2.5) = ln 1.6. Second: 1.2 * (0.25 + 0.75 * 3/8) = 0.6375. First: 1.2 * (0.25 + 0.75 * 9/8) = 1.3125.
        let dog = 1.6_f64.ln();
        let (second, first) = (dog * 2.2 / 1.6375, dog * 2.2 / 2.3125);
        check("dog", &[(1, second), (0, first)]);
        check("DOG dog", &[(1, second), (0, first)]);
        // idf(cat) = ln(1 + 2.5 / 1.5) = ln(8/3), twice in the first.
        let cat = (8.0_f64 / 3.0).ln() * 2.0 * 2.2 / 3.3125;
        check("the cat's dog", &[(0, cat + first), (1, second)]);
        // The third: 1.2 * (0.25 + 0.75 * 1.5) = 1.65.
        check("fish", &[(2, (8.0_f64 / 3.0).ln() * 2.0 * 2.2 / 3.65)]);
        check("", &[]);
        check("horse", &[]);
    }

    #[test]
    fn equal_documents_keep_their_order() {
        let index = Bm25::new(["a b", "b a", "a b"], 1.2, 0.75);
        let order: Vec<usize> = index
            .search("b")
            .into_iter()
            .map(|(document, _)| document)
            .collect();
        assert_eq!(order, [0, 1, 2]);
        assert!(Bm25::new([], 1.2, 0.75).search("a").is_empty());
    }
}
