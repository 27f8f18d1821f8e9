//! An episode token by token: which tokens are in the loss, how likely the sampler found each, what came from outside.

use maud::{Markup, html};
use mipu_agent::PROMPT_TURN;

use super::load::Episode;

/// Tokens shown of one episode: past this a page gets slow, and the record is in `trajectories/` anyway.
const MAX_TOKENS: usize = 4_000;

/// Turns token ids into text, special tokens included.
pub type Decode<'a> = &'a dyn Fn(&[u32]) -> String;

/// A run of tokens with one origin.
struct Segment {
    sampled: bool,
    turn: u16,
    from: usize,
    to: usize,
}

fn segments(episode: &Episode) -> Vec<Segment> {
    let tokens = &episode.tokens;
    let mut out: Vec<Segment> = Vec::new();
    for at in 0..tokens.len().min(MAX_TOKENS) {
        let (sampled, turn) = (tokens.loss_mask()[at], tokens.turn()[at]);
        match out.last_mut() {
            Some(last) if last.sampled == sampled && last.turn == turn => last.to = at + 1,
            _ => out.push(Segment {
                sampled,
                turn,
                from: at,
                to: at + 1,
            }),
        }
    }
    out
}

/// The transcript of one episode.
pub(super) fn transcript(heading: &str, episode: &Episode, decode: Decode<'_>) -> Markup {
    let tokens = &episode.tokens;
    let in_loss = tokens.loss_mask().iter().filter(|m| **m).count();
    let stop = episode.stop.as_str().unwrap_or("unknown");
    html! {
        article.transcript {
            h3 { (heading) " " small { "return " (super::plot::number(episode.ret())) " · " (stop.replace('_', " ")) } }
            p.facts {
                code { (episode.task_id) } " · sample " (episode.sample) " · policy version " (episode.policy_version) " · "
                (episode.turns()) " turns · " (in_loss) " of " (tokens.len()) " tokens in the loss"
            }
            @for segment in segments(episode) {
                div class={ "segment " (if segment.sampled { "agent" } else { "context" }) } {
                    span.who { (who(&segment)) }
                    div.tokens {
                        @if segment.sampled {
                            @for at in segment.from..segment.to { (sampled(episode, at, decode)) }
                        } @else { (context(episode, &segment, decode)) }
                    }
                }
            }
            @if tokens.len() > MAX_TOKENS { p.facts { "cut after " (MAX_TOKENS) " tokens" } }
        }
    }
}

fn who(segment: &Segment) -> String {
    match (segment.turn, segment.sampled) {
        (PROMPT_TURN, _) => "prompt".into(),
        (turn, true) => format!("agent, turn {}", turn + 1),
        (turn, false) => format!("tool, turn {}", turn + 1),
    }
}

/// One sampled token, shaded by how unlikely the sampler found it.
fn sampled(episode: &Episode, at: usize, decode: Decode<'_>) -> Markup {
    let id = episode.tokens.ids()[at];
    let logprob = episode.tokens.sampler_logprobs()[at];
    let text = decode(&[id]);
    let probability = f64::from(logprob).exp();
    let shade = match probability {
        p if p >= 0.9 => "p0",
        p if p >= 0.5 => "p1",
        p if p >= 0.1 => "p2",
        _ => "p3",
    };
    let class = if is_special(&text) {
        format!("t special {shade}")
    } else {
        format!("t {shade}")
    };
    html! {
        span class=(class) title={ "id " (id) " · log-prob " (format!("{logprob:.4}")) " · p " (format!("{probability:.3}")) } {
            (visible(&text))
        }
    }
}

/// Tokens from outside: plain text in one piece, special tokens apart.
fn context(episode: &Episode, segment: &Segment, decode: Decode<'_>) -> Markup {
    let ids = &episode.tokens.ids()[segment.from..segment.to];
    let mut pieces: Vec<(bool, Vec<u32>)> = Vec::new();
    for id in ids {
        let special = is_special(&decode(&[*id]));
        match pieces.last_mut() {
            Some((false, run)) if !special => run.push(*id),
            _ => pieces.push((special, vec![*id])),
        }
    }
    html! {
        @for (special, run) in &pieces {
            @if *special { span.t.special title={ "id " (run[0]) } { (visible(&decode(run))) } } @else { (visible(&decode(run))) }
        }
    }
}

/// A single token whose text is `<name>`, `<|name|>` or `[NAME]`: special tokens of every tokenizer in use look like this.
fn is_special(text: &str) -> bool {
    let inner = text.strip_prefix('<').and_then(|t| t.strip_suffix('>'));
    let inner = inner.or_else(|| text.strip_prefix('[').and_then(|t| t.strip_suffix(']')));
    inner.is_some_and(|t| t.len() > 1 && t.chars().all(|c| c.is_ascii_alphanumeric() || "_|/-".contains(c)))
}

/// Control characters made visible; a line break keeps breaking the line.
fn visible(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => out.push_str("⏎\n"),
            '\t' => out.push('⇥'),
            // U+2400 is the picture of NUL, and so on.
            c if (c as u32) < 0x20 => out.push(char::from_u32(0x2400 + c as u32).unwrap_or('\u{fffd}')),
            '\u{7f}' => out.push('\u{2421}'),
            // Marks that reorder text would let an observation disguise itself.
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_tokens_are_told_from_text() {
        for text in ["<bos>", "<end_call>", "<|im_start|>", "[CLS]", "</s>"] {
            assert!(is_special(text), "{text}");
        }
        for text in [
            "<",
            "<>",
            "a<b>",
            "< b >",
            "[1, 2]",
            "<script>alert(1)</script>",
            "",
        ] {
            assert!(!is_special(text), "{text}");
        }
    }

    #[test]
    fn control_characters_are_visible_and_harmless() {
        assert_eq!(visible("a\n\tb\u{0}\u{1b}\u{202e}c"), "a⏎\n⇥b␀␛\u{fffd}c");
    }
}
