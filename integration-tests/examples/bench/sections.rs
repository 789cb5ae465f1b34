//! The sections of a part of the page: one for each store. Those of stores that were not measured this time stay as they are.

/// What stands under a heading of the third level, with that heading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Section {
    pub(crate) store: String,
    pub(crate) text: String,
}

/// How the line begins that says when and how figures were made.
pub(crate) const MADE: &str = "Made on ";

/// How a section begins.
const HEADING: &str = "### ";

/// The lines before the first section, and the sections. Where one line said for all of them when they were made, each gets it.
pub(crate) fn parse(text: &str) -> (Vec<&str>, Vec<Section>) {
    let mut head = Vec::new();
    let mut sections: Vec<Section> = Vec::new();
    for line in text.lines() {
        match (line.strip_prefix(HEADING), sections.last_mut()) {
            (Some(store), _) => sections.push(Section {
                store: store.to_owned(),
                text: format!("{line}\n"),
            }),
            (None, Some(section)) => {
                section.text.push_str(line);
                section.text.push('\n');
            }
            (None, None) => head.push(line),
        }
    }
    let made = head.iter().find(|line| line.starts_with(MADE));
    for section in &mut sections {
        section.text.truncate(section.text.trim_end().len());
        section.text.push('\n');
        let is_dated = section.text.lines().any(|line| line.starts_with(MADE));
        if let (Some(made), false) = (made, is_dated) {
            let title = format!("{HEADING}{}\n", section.store);
            section.text = section
                .text
                .replacen(&title, &format!("{title}\n{made}\n"), 1);
        }
    }
    (head, sections)
}

/// The new ones, with the old ones of other stores, in this order of the stores.
pub(crate) fn merge(old: Vec<Section>, new: Vec<Section>, order: &[&str]) -> Vec<Section> {
    let is_new = |section: &Section| new.iter().any(|other| other.store == section.store);
    let mut all: Vec<Section> = old.into_iter().filter(|old| !is_new(old)).collect();
    all.extend(new);
    let place = |store: &str| order.iter().position(|known| *known == store);
    all.sort_by_key(|section| place(&section.store).unwrap_or(order.len()));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\nMade on Monday with `ci/bench`.\n\n![a](a.svg)\n\n### redis\n\n| 1 |\n\n### zk\n\nMade on Tuesday.\n\n| 2 |\n\n";

    fn section(store: &str, text: &str) -> Section {
        Section {
            store: store.to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn each_section_keeps_the_day_of_its_own_run() {
        let (head, sections) = parse(PAGE);
        assert_eq!(
            head,
            ["", "Made on Monday with `ci/bench`.", "", "![a](a.svg)", ""]
        );
        let redis = "### redis\n\nMade on Monday with `ci/bench`.\n\n| 1 |\n";
        let zk = "### zk\n\nMade on Tuesday.\n\n| 2 |\n";
        assert_eq!(sections, [section("redis", redis), section("zk", zk)]);
    }

    #[test]
    fn a_store_that_was_not_measured_stays() {
        let (_, old) = parse(PAGE);
        let new = vec![section("zk", "new"), section("etcd", "also new")];
        let all = merge(old, new, &["redis", "etcd", "zk"]);
        let stores: Vec<_> = all.iter().map(|section| section.store.as_str()).collect();
        assert_eq!(stores, ["redis", "etcd", "zk"]);
        assert!(all[0].text.contains("| 1 |"));
        assert_eq!(all[2].text, "new");
    }

    #[test]
    fn what_was_written_is_read_as_it_was() {
        let (_, sections) = parse(PAGE);
        let text: Vec<_> = sections
            .iter()
            .map(|section| section.text.as_str())
            .collect();
        assert_eq!(parse(&text.join("\n")).1, sections);
    }
}
