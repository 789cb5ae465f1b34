//! A small SVG: lines over two axes that both grow by factors of ten.

use std::fmt::Write;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 92.0;
const RIGHT: f64 = 250.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 52.0;

/// Distinct also for those who see red and green alike.
const COLOURS: [&str; 8] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999",
];

/// A line with its name.
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
    /// What dlock is compared to.
    pub(crate) dashed: bool,
}

/// One picture; none if there is nothing to draw.
pub(crate) fn draw(title: &str, x_label: &str, y_label: &str, lines: &[Line]) -> Option<String> {
    let points = || lines.iter().flat_map(|line| line.points.iter());
    let x = Axis::of(points().map(|point| point.0), LEFT, WIDTH - RIGHT)?;
    let y = Axis::of(points().map(|point| point.1), HEIGHT - BOTTOM, TOP)?;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"22\" font-size=\"15\" font-weight=\"bold\">{}</text>\n",
        escaped(title)
    );
    for tick in x.ticks() {
        let at = x.at(tick);
        let (top, bottom) = (TOP, HEIGHT - BOTTOM);
        let _ = writeln!(
            svg,
            "<path d=\"M{at:.1} {top}V{bottom}\" stroke=\"#ddd\"/><text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            bottom + 16.0,
            number(tick)
        );
    }
    for tick in y.ticks() {
        let at = y.at(tick);
        let (left, right) = (LEFT, WIDTH - RIGHT);
        let _ = writeln!(
            svg,
            "<path d=\"M{left} {at:.1}H{right}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            left - 6.0,
            at + 4.0,
            number(tick)
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"{}\">{}</text>\n<text x=\"14\" y=\"{TOP}\" transform=\"rotate(-90 14 {TOP})\" text-anchor=\"end\">{}</text>",
        HEIGHT - 14.0,
        escaped(x_label),
        escaped(y_label)
    );
    for (index, line) in lines.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let dash = if line.dashed {
            " stroke-dasharray=\"5 4\""
        } else {
            ""
        };
        let mut path = String::new();
        for (n, &(px, py)) in line.points.iter().enumerate() {
            let step = if n == 0 { 'M' } else { 'L' };
            let (px, py) = (x.at(px), y.at(py));
            let _ = write!(path, "{step}{px:.1} {py:.1}");
            let _ = writeln!(
                svg,
                "<circle cx=\"{px:.1}\" cy=\"{py:.1}\" r=\"3\" fill=\"{colour}\"/>"
            );
        }
        let (legend, row) = (WIDTH - RIGHT + 14.0, TOP + 10.0 + 20.0 * index as f64);
        let _ = writeln!(
            svg,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>\n\
             <path d=\"M{legend} {row}h22\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/><text x=\"{}\" y=\"{}\">{}</text>",
            legend + 28.0,
            row + 4.0,
            escaped(&line.name)
        );
    }
    svg.push_str("</svg>\n");
    Some(svg)
}

/// From some numbers to a place in the picture, by their logarithms.
struct Axis {
    least: f64,
    most: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn of(numbers: impl Iterator<Item = f64>, from: f64, to: f64) -> Option<Self> {
        let numbers: Vec<f64> = numbers.filter(|number| *number > 0.0).collect();
        let least = numbers.iter().copied().reduce(f64::min)?.log10().floor();
        let most = numbers.iter().copied().reduce(f64::max)?.log10().ceil();
        let most = most.max(least + 1.0);
        Some(Self {
            least,
            most,
            from,
            to,
        })
    }

    fn at(&self, number: f64) -> f64 {
        let part = (number.max(f64::MIN_POSITIVE).log10() - self.least) / (self.most - self.least);
        self.from + part.clamp(0.0, 1.0) * (self.to - self.from)
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        let powers = self.least as i32..=self.most as i32;
        powers.map(|power| 10_f64.powi(power))
    }
}

/// With commas between thousands.
pub(crate) fn number(value: f64) -> String {
    if value < 10.0 {
        let text = format!("{value:.2}");
        return match text.strip_suffix(".00") {
            Some(whole) => whole.to_owned(),
            None => text,
        };
    }
    let whole = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
