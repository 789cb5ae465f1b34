//! Reads a source file and its mutants, as `cargo mutants --list --json` names them, and writes the file with each mutant behind a
//! switch, so that one build serves all of them:
//!
//!     switches FILE < [{"id": 1, "genre": "BinaryOperator", "line": 3, "column": 7, "replacement": "||"}, ...]
//!
//! Prints `{"text": ..., "placed": [{"id", "start", "end"}], "refused": [{"id", "why"}]}`: the new text, where in it (in bytes) the
//! changed code of each mutant is, and which mutants could not be switched.
//!
//! No operand is written twice, so that mutants within each other are all in: `a && b` becomes `if a != on(1) { b } else { on(1) }`,
//! which is `a || b` when 1 is on.

use std::io::Read;
use std::ops::Range;

use proc_macro2::{LineColumn, Span};
use serde::{Deserialize, Serialize};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Expr, UnOp};

/// What tells whether a mutant is on; ci/mutants adds it to the crate.
const ON: &str = "crate::mutants::on";

#[derive(Deserialize)]
struct Mutant {
    id: u32,
    genre: String,
    line: usize,
    /// Counted from 1, as cargo-mutants does.
    column: usize,
    replacement: String,
}

#[derive(Serialize)]
struct Placed {
    id: u32,
    start: usize,
    end: usize,
}

#[derive(Serialize)]
struct Refused {
    id: u32,
    why: &'static str,
}

#[derive(Serialize)]
struct Output {
    text: String,
    placed: Vec<Placed>,
    refused: Vec<Refused>,
}

/// Text that takes the place of `remove` bytes at `at`.
struct Edit {
    at: usize,
    remove: usize,
    text: String,
    /// Where the changed code of mutants is in the text.
    marks: Vec<(u32, Range<usize>)>,
    /// What is at the same place goes by this: first what closes, from the inside out, then what opens, from the outside in.
    order: (bool, usize, usize),
}

struct Switcher<'a> {
    source: &'a str,
    mutants: Vec<Mutant>,
    edits: Vec<Edit>,
    refused: Vec<Refused>,
    /// Within a const function, or what is computed at compile time: nothing can be switched there.
    in_const: bool,
}

/// Text with the places of mutants in it.
#[derive(Default)]
struct Text {
    text: String,
    marks: Vec<(u32, Range<usize>)>,
}

impl Text {
    fn push(&mut self, text: &str) {
        self.text.push_str(text);
    }

    fn push_mutant(&mut self, id: u32, text: &str) {
        let start = self.text.len();
        self.text.push_str(text);
        self.marks.push((id, start..self.text.len()));
    }

    /// `if on(1) { one } else if on(2) { two } else { usual }`
    fn push_choice(&mut self, mutants: &[Mutant], change: impl Fn(&Mutant) -> String, usual: &str) {
        for mutant in mutants {
            self.push(&format!("if {ON}({}) {{ ", mutant.id));
            self.push_mutant(mutant.id, &change(mutant));
            self.push(" } else ");
        }
        self.push(&format!("{{ {usual} }}"));
    }
}

impl Switcher<'_> {
    /// The mutants of a genre that begin here; none of them is looked for again.
    fn take(&mut self, genre: &str, at: LineColumn) -> Vec<Mutant> {
        let here =
            |m: &mut Mutant| m.genre == genre && m.line == at.line && m.column == at.column + 1;
        let taken: Vec<_> = self.mutants.extract_if(.., here).collect();
        if self.in_const {
            return self.refuse(taken, "not switched: computed at compile time");
        }
        taken
    }

    fn refuse(&mut self, mutants: Vec<Mutant>, why: &'static str) -> Vec<Mutant> {
        let refused = mutants.iter().map(|mutant| Refused { id: mutant.id, why });
        self.refused.extend(refused);
        Vec::new()
    }

    fn edit(&mut self, place: Range<usize>, opens: bool, rank: usize, text: Text) {
        let number = self.edits.len();
        self.edits.push(Edit {
            at: place.start,
            remove: place.len(),
            text: text.text,
            marks: text.marks,
            order: (
                opens,
                rank,
                if opens { number } else { usize::MAX - number },
            ),
        });
    }

    /// Before an expression, in the place of its first `remove` bytes.
    fn open(&mut self, whole: &Range<usize>, remove: usize, text: &str) {
        let text = Text {
            text: text.to_owned(),
            marks: Vec::new(),
        };
        self.edit(
            whole.start..whole.start + remove,
            true,
            usize::MAX - whole.end,
            text,
        );
    }

    fn close(&mut self, whole: &Range<usize>, text: Text) {
        self.edit(whole.end..whole.end, false, usize::MAX - whole.start, text);
    }

    fn replace(&mut self, place: Range<usize>, text: &str) {
        let text = Text {
            text: text.to_owned(),
            marks: Vec::new(),
        };
        self.edit(place, true, 0, text);
    }

    fn body(&mut self, block: &syn::Block) {
        let Some(first) = block.stmts.first() else {
            return;
        };
        let mutants = self.take("FnValue", first.span().start());
        let mut text = Text::default();
        for mutant in &mutants {
            text.push(&format!("if {ON}({}) {{ ", mutant.id));
            text.push_mutant(mutant.id, &format!("return {};", mutant.replacement));
            text.push(" } ");
        }
        let start = first.span().byte_range().start;
        self.edit(start..start, true, 0, text);
    }

    fn function(&mut self, signature: &syn::Signature, visit: impl FnOnce(&mut Self)) {
        let before = self.in_const;
        self.in_const = signature.constness.is_some();
        visit(self);
        self.in_const = before;
    }

    fn constant(&mut self, visit: impl FnOnce(&mut Self)) {
        let before = std::mem::replace(&mut self.in_const, true);
        visit(self);
        self.in_const = before;
    }

    fn binary(&mut self, expr: &syn::ExprBinary, mutants: Vec<Mutant>) {
        let usual = bytes(expr.op.span());
        let (left, right) = (bytes(expr.left.span()), bytes(expr.right.span()));
        let whole = left.start..right.end;
        // From the end of the left side to the start of the right one, so that comments between them do not come in between.
        let between = left.end..right.start;
        let op = &self.source[usual];
        let on = |mutant: &Mutant| format!("{ON}({})", mutant.id);
        let mut end = Text::default();
        match expr.op {
            BinOp::And(_) | BinOp::Or(_) => {
                let Some(mutant) = mutants.first() else {
                    return;
                };
                let (compared, otherwise) = match expr.op {
                    BinOp::And(_) => ("!=", on(mutant)),
                    _ => ("==", format!("!{}", on(mutant))),
                };
                let middle = format!(" {compared} {} {{ ", on(mutant));
                end.push(" } else { ");
                end.push_mutant(mutant.id, &otherwise);
                end.push(" })");
                self.open(&whole, 0, "(if ");
                self.replace(between, &middle);
            }
            BinOp::Eq(_) | BinOp::Ne(_) => {
                let Some(mutant) = mutants.first() else {
                    return;
                };
                end.push(") != ");
                end.push_mutant(mutant.id, &on(mutant));
                end.push(")");
                self.open(&whole, 0, "((");
            }
            BinOp::Lt(_) | BinOp::Le(_) | BinOp::Gt(_) | BinOp::Ge(_) => {
                end.push(")) { (l, r) => ");
                end.push_choice(
                    &mutants,
                    |m| format!("l {} r", m.replacement),
                    &format!("l {op} r"),
                );
                end.push(" })");
                self.open(&whole, 0, "(match (&(");
                self.replace(between, "), &(");
            }
            _ if is_assignment(&expr.op) => {
                // The left side is a place, and is written again; what is in it is not switched.
                let place = &self.source[left];
                end.push(") { r => ");
                end.push_choice(
                    &mutants,
                    |m| format!("{place} {} r", m.replacement),
                    &format!("{place} {op} r"),
                );
                end.push(" })");
                self.edit(
                    whole.start..right.start,
                    true,
                    usize::MAX - whole.end,
                    Text {
                        text: "(match (".to_owned(),
                        marks: Vec::new(),
                    },
                );
            }
            _ => {
                end.push(")) { (l, r) => ");
                end.push_choice(
                    &mutants,
                    |m| format!("l {} r", m.replacement),
                    &format!("l {op} r"),
                );
                end.push(" })");
                self.open(&whole, 0, "(match ((");
                self.replace(between, "), (");
            }
        }
        self.close(&whole, end);
    }
}

impl<'ast> Visit<'ast> for Switcher<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, |this| {
            this.body(&item.block);
            visit::visit_item_fn(this, item);
        });
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.sig, |this| {
            this.body(&item.block);
            visit::visit_impl_item_fn(this, item);
        });
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.function(&item.sig, |this| {
            item.default.iter().for_each(|block| this.body(block));
            visit::visit_trait_item_fn(this, item);
        });
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.constant(|this| visit::visit_item_const(this, item));
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        self.constant(|this| visit::visit_impl_item_const(this, item));
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.constant(|this| visit::visit_item_static(this, item));
    }

    fn visit_expr_binary(&mut self, expr: &'ast syn::ExprBinary) {
        let mutants = self.take("BinaryOperator", expr.op.span().start());
        if has_let(&expr.left) || has_let(&expr.right) {
            // `if let A = a || b` is not Rust.
            self.refuse(mutants, "not viable");
        } else if !mutants.is_empty() {
            self.binary(expr, mutants);
            if is_assignment(&expr.op) {
                return self.visit_expr(&expr.right);
            }
        }
        visit::visit_expr_binary(self, expr);
    }

    fn visit_expr_unary(&mut self, expr: &'ast syn::ExprUnary) {
        let mutants = self.take("UnaryOperator", expr.op.span().start());
        let whole = bytes(expr.op.span()).start..bytes(expr.expr.span()).end;
        match (mutants.first(), expr.op) {
            (Some(mutant), UnOp::Not(_)) => {
                let mut end = Text::default();
                end.push(") == ");
                end.push_mutant(mutant.id, &format!("{ON}({})", mutant.id));
                end.push(")");
                self.open(&whole, 1, "((");
                self.close(&whole, end);
            }
            _ => _ = self.refuse(mutants, "not switched: a sign"),
        }
        visit::visit_expr_unary(self, expr);
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        for mutant in self.take("MatchArm", arm.span().start()) {
            let mut text = Text::default();
            text.push(" if ");
            text.push_mutant(mutant.id, &format!("!{ON}({})", mutant.id));
            let end = bytes(arm.pat.span()).end;
            self.edit(end..end, true, 0, text);
        }
        if let Some((_, guard)) = &arm.guard {
            let mutants = self.take("MatchArmGuard", guard.span().start());
            if has_let(guard) {
                self.refuse(mutants, "not switched: a guard with let");
            } else if !mutants.is_empty() {
                let whole = bytes(guard.span());
                let (mut opening, mut closing) = (String::new(), Text::default());
                for mutant in &mutants {
                    opening.push_str(if mutant.replacement == "true" {
                        "("
                    } else {
                        "(("
                    });
                    closing.push(if mutant.replacement == "true" {
                        " || "
                    } else {
                        ") && !"
                    });
                    closing.push_mutant(mutant.id, &format!("{ON}({})", mutant.id));
                    closing.push(")");
                }
                opening.push('(');
                closing.text.insert(0, ')');
                closing
                    .marks
                    .iter_mut()
                    .for_each(|(_, mark)| *mark = mark.start + 1..mark.end + 1);
                self.open(&whole, 0, &opening);
                self.close(&whole, closing);
            }
        }
        visit::visit_arm(self, arm);
    }

    fn visit_expr_struct(&mut self, expr: &'ast syn::ExprStruct) {
        let whole = bytes(expr.span());
        let mut opening = Text::default();
        let mut closing = Text::default();
        for pair in expr.fields.pairs() {
            for mutant in self.take("StructField", pair.value().span().start()) {
                let mut field = bytes(pair.value().span());
                field.end = pair
                    .punct()
                    .map_or(field.end, |comma| bytes(comma.span()).end);
                opening.push(&format!("(if {ON}({}) {{ ", mutant.id));
                let without = format!(
                    "{}{}",
                    &self.source[whole.start..field.start],
                    &self.source[field.end..whole.end]
                );
                opening.push_mutant(mutant.id, &without);
                opening.push(" } else { ");
                closing.push(" })");
            }
        }
        if !opening.text.is_empty() {
            self.edit(
                whole.start..whole.start,
                true,
                usize::MAX - whole.end,
                opening,
            );
            self.close(&whole, closing);
        }
        visit::visit_expr_struct(self, expr);
    }
}

fn bytes(span: Span) -> Range<usize> {
    span.byte_range()
}

fn is_assignment(op: &BinOp) -> bool {
    use BinOp::*;
    matches!(
        op,
        AddAssign(_)
            | SubAssign(_)
            | MulAssign(_)
            | DivAssign(_)
            | RemAssign(_)
            | BitXorAssign(_)
            | BitAndAssign(_)
            | BitOrAssign(_)
            | ShlAssign(_)
            | ShrAssign(_)
    )
}

/// Whether an expression is a part of `if let ... && ...`.
fn has_let(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(expr) => has_let(&expr.left) || has_let(&expr.right),
        _ => false,
    }
}

fn main() {
    let file = std::env::args().nth(1).expect("which file?");
    let source = std::fs::read_to_string(file).expect("a file that can be read");
    let mut input = String::new();
    std::io::stdin()
        .read_to_string(&mut input)
        .expect("mutants on stdin");
    let mutants = serde_json::from_str(&input).expect("mutants in JSON");
    let parsed = syn::parse_file(&source).expect("a source file");
    let mut switcher = Switcher {
        source: &source,
        mutants,
        edits: Vec::new(),
        refused: Vec::new(),
        in_const: false,
    };
    switcher.visit_file(&parsed);
    let left = std::mem::take(&mut switcher.mutants);
    switcher.refuse(left, "not switched: not found");
    let Switcher {
        mut edits, refused, ..
    } = switcher;
    edits.sort_by_key(|edit| (edit.at, edit.order));
    let (mut text, mut placed, mut at) = (String::new(), Vec::new(), 0);
    for edit in edits {
        text.push_str(&source[at..edit.at]);
        let start = text.len();
        placed.extend(edit.marks.into_iter().map(|(id, mark)| Placed {
            id,
            start: start + mark.start,
            end: start + mark.end,
        }));
        text.push_str(&edit.text);
        at = edit.at + edit.remove;
    }
    text.push_str(&source[at..]);
    println!(
        "{}",
        serde_json::to_string(&Output {
            text,
            placed,
            refused
        })
        .expect("JSON")
    );
}
