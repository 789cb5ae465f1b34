//! Tables of bugs: what is wrong, in words, and the case that catches it.

macro_rules! bugs {
    ($bugs:ident in $table:ident $(and $($other:ident),+)?: $($bug:ident $what:literal, $($case:ident)?;)*) => {
        /// What is wrong.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum $bugs {
            None,
            $($bug,)*
            $($($other,)+)?
        }

        /// Each bug, in words, and the case that catches it; an empty name for one that survives.
        pub(crate) const $table: &[($bugs, &str, &str)] = &[
            $(($bugs::$bug, $what, concat!($(stringify!($case))?)),)*
        ];
    };
}
