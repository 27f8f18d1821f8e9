//! One batch: which tokens of which jobs run together, whose prefix is shared, and on how many threads.

use rayon::prelude::*;

use super::forward::{Scratch, Want, Work};
use super::kv::common_prefix;
use super::worker::{Kind, Worker};
use crate::quant::Team;

/// Context tokens run in one step, so that long prompts do not hold up running turns.
const PREFILL_ROWS: usize = 512;

/// A prefix shorter than this is computed again rather than waited for.
const WORTH_WAITING: usize = 8;

/// Packed models up to this size fit the cores' caches: then each thread takes a share of the episodes instead of a share of each
/// layer.
const SMALL_MODEL: usize = 4 << 20;

/// What one batch gave a job: drawn or scored ids with their log-probs.
struct Ran {
    job: usize,
    out: Vec<(u32, [f32; 2])>,
    broken: bool,
}

impl Worker {
    /// Lets a fresh job start from the longest prefix that some cache already has. False when another job is about to compute
    /// more of it: then it is worth waiting.
    fn adopt_prefix(&mut self, index: usize) -> bool {
        let (before, rest) = self.jobs.split_at_mut(index);
        let Some((job, after)) = rest.split_first_mut() else {
            return true;
        };
        if !job.fresh || !self.config.share_prefixes {
            return true;
        }
        let context = &job.ids[..job.ids.len() - 1];
        let others = before.iter().chain(after.iter()).map(|other| &other.cache);
        let kept = self.idle.values().map(|idle| &idle.cache).chain(&self.retired);
        let best = others
            .chain(kept)
            .max_by_key(|cache| common_prefix(cache.ids(), context));
        if let Some(cache) = best {
            let len = common_prefix(cache.ids(), context);
            if len > job.cache.ids().len() {
                self.stats.shared_tokens += (len - job.cache.ids().len()) as u64;
                job.cache = cache.share(len);
            }
        }
        let have = job.cache.ids().len();
        !before.iter().any(|other| {
            let len = common_prefix(&other.ids, context);
            len >= have + WORTH_WAITING && other.cache.ids().len() < len
        })
    }

    /// Runs one batch and hands out what is finished.
    pub(super) fn step(&mut self) {
        let mut prefill = PREFILL_ROWS;
        let mut counts = vec![0; self.jobs.len()];
        for (index, count) in counts.iter_mut().enumerate() {
            if self.jobs[index].waiting || (prefill == 0 && self.jobs[index].fresh) {
                continue;
            }
            if !self.adopt_prefix(index) {
                continue;
            }
            let job = &self.jobs[index];
            let left = job.ids.len() - job.cache.ids().len();
            // A score needs no row for its last id.
            let left = left - usize::from(matches!(job.kind, Kind::Score { .. }));
            *count = if left == 1 { 1 } else { left.min(prefill) };
            prefill -= if left == 1 { 0 } else { *count };
            self.jobs[index].fresh &= *count == 0;
        }
        let results = self.run(&counts);
        for Ran {
            job: index,
            out,
            broken,
        } in results
        {
            self.stats.computed_tokens += counts[index] as u64;
            let job = &mut self.jobs[index];
            if matches!(job.kind, Kind::Turn { .. }) {
                job.ids.extend(out.iter().map(|drawn| drawn.0));
            }
            job.logprobs.extend(out.iter().map(|(_, logprobs)| logprobs[0]));
            job.unfiltered_logprobs
                .extend(out.iter().map(|(_, logprobs)| logprobs[1]));
            job.broken |= broken;
        }
        self.finish();
    }

    /// Runs `counts[i]` tokens of job `i`.
    fn run(&mut self, counts: &[usize]) -> Vec<Ran> {
        let mut works = Vec::new();
        let mut owners = Vec::new();
        for (index, (job, &count)) in self.jobs.iter_mut().zip(counts).enumerate() {
            if count == 0 {
                continue;
            }
            let start = job.cache.ids().len();
            let want = match &mut job.kind {
                Kind::Score { temperature, .. } => {
                    let targets = &job.ids[start + 1..start + count + 1];
                    Want::Score {
                        temperature: *temperature,
                        targets,
                    }
                }
                Kind::Turn { request, rng, .. } if start + count == job.ids.len() => Want::Draw {
                    sampling: request.sampling,
                    rng,
                },
                Kind::Turn { .. } => Want::Nothing,
            };
            let tokens = &job.ids[start..start + count];
            works.push(Work {
                cache: &mut job.cache,
                tokens,
                want,
                out: Vec::new(),
                broken: false,
            });
            owners.push(index);
        }
        if works.is_empty() {
            return Vec::new();
        }
        let threads = rayon::current_num_threads();
        let rows: usize = works.iter().map(|w| w.tokens.len()).sum();
        let small = self.config.weight_bytes(&self.model.config) <= SMALL_MODEL;
        let shares = if works.len() >= threads && (small || rows >= 64 * threads) {
            threads
        } else {
            1
        };
        self.scratch.resize_with(threads, Scratch::default);
        let model = &self.model;
        if shares == 1 {
            let team = if threads == 1 || small {
                Team::Solo
            } else {
                Team::Pool
            };
            model.run(&mut works, &mut self.scratch[0], team);
        } else {
            let parts = split(&mut works, shares, rows);
            let jobs = parts.into_par_iter().zip(&mut self.scratch);
            jobs.for_each(|(works, scratch)| model.run(works, scratch, Team::Solo));
        }
        owners
            .into_iter()
            .zip(works)
            .map(|(job, work)| Ran {
                job,
                out: work.out,
                broken: work.broken,
            })
            .collect()
    }
}

/// Cuts works into `shares` runs of about equally many rows.
fn split<'a, 'b>(mut works: &'a mut [Work<'b>], shares: usize, rows: usize) -> Vec<&'a mut [Work<'b>]> {
    let mut parts = Vec::with_capacity(shares);
    let mut taken = 0;
    for share in 1..shares {
        let goal = rows * share / shares;
        let mut count = 0;
        while count < works.len() && taken < goal {
            taken += works[count].tokens.len();
            count += 1;
        }
        let (part, rest) = works.split_at_mut(count);
        parts.push(part);
        works = rest;
    }
    parts.push(works);
    parts.retain(|part| !part.is_empty());
    parts
}
