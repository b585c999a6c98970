-- The ten destinations with the most departures within an hour, in steps of five minutes.
-- Destinations with the same count are ordered by name, so each place has one right answer.
WITH counted AS (
  SELECT
    window(time_hour + make_dt_interval(0, 0, minute), '1 hour', '5 minutes') AS span,
    dest,
    count(*) AS flights
  FROM flights
  WHERE NOT cancelled
  GROUP BY 1, 2
), placed AS (
  SELECT *, row_number() OVER (PARTITION BY span ORDER BY flights DESC, dest) AS place
  FROM counted
)
SELECT span, place, dest, flights FROM placed WHERE place <= 10
