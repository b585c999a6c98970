-- Aircraft that leave an airport too soon after they landed at another one: faster than 1,000 km/h
-- over the great circle between the two. `lag` has the landing before, per tail number.
WITH flown AS (
  SELECT
    tailnum, carrier, flight, time_hour, origin, dest, air_time,
    time_hour + make_dt_interval(0, 0, minute + dep_delay) AS departed
  FROM flights
  WHERE tailnum IS NOT NULL AND dep_delay IS NOT NULL AND air_time IS NOT NULL
), followed AS (
  SELECT
    *,
    lag(dest) OVER earlier AS landed_at,
    lag(departed + make_dt_interval(0, 0, air_time)) OVER earlier AS landed
  FROM flown
  WINDOW earlier AS (PARTITION BY tailnum ORDER BY departed, carrier, flight, time_hour)
), measured AS (
  SELECT
    f.tailnum, f.carrier, f.flight, f.time_hour, f.landed_at, f.landed, f.origin, f.departed,
    unix_seconds(f.departed) - unix_seconds(f.landed) AS seconds,
    2 * 6371 * asin(sqrt(least(1.0D,
      pow(sin(radians(t.lat - l.lat) / 2), 2)
      + cos(radians(l.lat)) * cos(radians(t.lat)) * pow(sin(radians(t.lon - l.lon) / 2), 2)
    ))) AS km
  FROM followed f
  JOIN airports l ON l.faa = f.landed_at
  JOIN airports t ON t.faa = f.origin
)
SELECT * FROM measured WHERE km > 1000.0D * seconds / 3600
