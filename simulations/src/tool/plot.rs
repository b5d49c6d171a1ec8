//! Plots as inline SVG, for pages that need nothing else.

use std::fmt::Write as _;

const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 200.0;
const LEFT: f64 = 44.0;
const BOTTOM: f64 = 24.0;

/// A line of a plot.
#[derive(Debug, Clone)]
pub struct Line<'a> {
    /// What the legend says.
    pub name: &'a str,
    /// A CSS colour.
    pub colour: &'a str,
    /// Its points, ascending by x.
    pub points: Vec<(f64, f64)>,
}

/// The share of the samples at or below each value: one curve shows median, tail and outliers at once.
#[must_use]
pub fn distribution(samples: &[f64]) -> Vec<(f64, f64)> {
    let mut sorted: Vec<f64> = samples.iter().copied().filter(|sample| sample.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    // At most 200 points: more than the picture has room for only makes the page large.
    let step = count.div_ceil(200).max(1);
    let chosen = (0..count).step_by(step).chain(count.checked_sub(1));
    chosen.filter_map(|at| Some((*sorted.get(at)?, share(at + 1, count)))).collect()
}

/// The value below which this share of the samples lies; 0 without samples.
#[must_use]
pub fn quantile(samples: &[f64], share: f64) -> f64 {
    let mut sorted: Vec<f64> = samples.iter().copied().filter(|sample| sample.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a place in a list")]
    let at = (last as f64 * share).round() as usize;
    sorted.get(at).copied().unwrap_or(0.0)
}

/// A plot of lines, with axes from 0 to the greatest value.
#[must_use]
pub fn svg(title: &str, unit: &str, lines: &[Line<'_>]) -> String {
    let points = || lines.iter().flat_map(|line| line.points.iter());
    let max_x = points().map(|(x, _)| *x).fold(0.0, f64::max).max(1e-9);
    let max_y = points().map(|(_, y)| *y).fold(0.0, f64::max).max(1e-9);
    let place = |(x, y): &(f64, f64)| {
        let across = LEFT + x / max_x * (WIDTH - LEFT - 10.0);
        let down = HEIGHT - BOTTOM - y / max_y * (HEIGHT - BOTTOM - 30.0);
        format!("{across:.1},{down:.1}")
    };
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" role=\"img\"><title>{title}</title>\
         <text x=\"{LEFT}\" y=\"14\" font-weight=\"bold\">{title}</text>"
    );
    for part in 0..=4_u32 {
        let (x, y) = (max_x * f64::from(part) / 4.0, max_y * f64::from(part) / 4.0);
        let (at_x, at_y) = (place(&(x, 0.0)), place(&(0.0, y)));
        let (down, across) = (at_y.split(',').next_back().unwrap_or("0"), at_x.split(',').next().unwrap_or("0"));
        let right = WIDTH - 10.0;
        let _ = write!(
            out,
            "<line x1=\"{LEFT}\" y1=\"{down}\" x2=\"{right}\" y2=\"{down}\" stroke=\"#ddd\"/>\
             <text x=\"2\" y=\"{down}\">{}</text><text x=\"{across}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            short(y),
            HEIGHT - 8.0,
            short(x)
        );
    }
    for (place_in_legend, line) in (0_u32..).zip(lines) {
        let path: Vec<String> = line.points.iter().map(place).collect();
        let _ = write!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\"/>\
             <text x=\"{}\" y=\"14\" fill=\"{}\" text-anchor=\"end\">{}</text>",
            path.join(" "),
            line.colour,
            WIDTH - 10.0 - 90.0 * f64::from(place_in_legend),
            line.colour,
            line.name
        );
    }
    let _ = write!(out, "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{unit}</text></svg>", WIDTH - 10.0, HEIGHT - BOTTOM - 4.0);
    out
}

/// A number in few characters.
#[must_use]
pub fn short(number: f64) -> String {
    match number.abs() {
        n if n >= 1e6 => format!("{:.1}M", number / 1e6),
        n if n >= 1e4 => format!("{:.0}k", number / 1e3),
        n if n >= 10.0 || n == 0.0 => format!("{number:.0}"),
        _ => format!("{number:.2}"),
    }
}

/// Text inside of HTML or SVG.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A count as a number with a fraction.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "for the eye")]
pub fn as_f64(count: u64) -> f64 {
    count as f64
}

#[expect(clippy::cast_precision_loss, reason = "counts of runs")]
fn share(part: usize, whole: usize) -> f64 {
    part as f64 / whole.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_samples() {
        let samples = [5.0, 1.0, 4.0, 2.0, 3.0, f64::NAN];
        assert_eq!([0.0, 0.5, 1.0].map(|share| short(quantile(&samples, share))), ["1.00", "3.00", "5.00"]);
        assert_eq!(short(quantile(&[], 0.5)), "0");
    }

    #[test]
    fn a_plot_has_every_line_and_no_tag_from_outside() {
        let line = |name| Line { name, colour: "#036", points: distribution(&[1.0, 2.0, 2.0]) };
        let plot = svg("title", "ms", &[line("now"), line("before")]);
        assert_eq!(plot.matches("<polyline").count(), 2);
        assert!(!plot.contains("NaN"));
        assert_eq!(escape("<a \"b\"&>"), "&lt;a &quot;b&quot;&amp;&gt;");
    }

    #[test]
    fn a_distribution_is_thinned_and_ends_at_one() {
        let samples: Vec<f64> = (0..10_000).map(f64::from).collect();
        let curve = distribution(&samples);
        assert!(curve.len() <= 202);
        assert_eq!(curve.last(), Some(&(9_999.0, 1.0)));
    }
}
