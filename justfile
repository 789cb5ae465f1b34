# The daily commands: `just` lists them. Each is one line that also works without just.

_list:
    @just --list

# Everything that must hold before a change goes in
test:
    ci/test

# Format, lints and documentation of one crate
check crate:
    cargo fmt --all
    cargo clippy -p {{crate}} --all-targets --all-features -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc -p {{crate}} --no-deps --all-features

# The flash sale, with files
demo:
    cargo demo

# Links and code of the pages; the book, where mdbook is installed
docs *args:
    ci/docs {{args}}

# The public API against docs/api; `just api --write` after a change that is meant
api *args:
    ci/api {{args}}

# What each server is asked for against docs/costs.txt; `just costs --write` after a change that is meant
costs *args:
    ci/costs {{args}}

# Figures and plots of docs/benchmarks.md, on a machine that does nothing else
bench *args:
    ci/bench {{args}}

# The oldest compiler that we promise
msrv:
    ci/msrv

# Every crate as it would be published
package *args:
    ci/package {{args}}

# Licences, advisories, sources
deny:
    cargo deny check

# Binary, Debian package and container of the command
release:
    ci/release

# Random faults on random stores, judged
soak minutes="30":
    ci/soak --minutes {{minutes}}
