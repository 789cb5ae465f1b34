-- The holder leaves in order: clears its mark and gives the lock back, in one statement with one commit. A waiter that stood in line gives its place up too.
-- arguments  name of the lock at the server, the place's if it has one, name, attempt, token
-- returns    affected rows: 1 when it held until now; 0 when the hold was gone, and then the lock is not given back
--
-- The row of the mark is locked before its columns get their values, so the order is: lock the row, give the lock back, commit. Whoever is granted the lock
-- asks for the mark by advisory_take.sql, which waits for the row and so for the commit, and meanwhile its grant is on its way already. If there is no
-- commit (the connection or the server ends), the mark still has its owner, and the next one waits the validity out.
UPDATE {marks} FORCE INDEX (PRIMARY) SET stamp = stamp + 1,
  freed = fence + 0 * (COALESCE(RELEASE_LOCK(?), 0){leave}), owner = NULL, dead_at = NULL
WHERE name = ? AND part = 1 AND owner = ? AND fence = ? AND broken = 0
