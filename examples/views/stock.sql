-- The stock of each product: receipts less orders. Products without either have 0.
WITH moved AS (
  SELECT product, quantity FROM receipts
  UNION ALL
  SELECT product, -quantity FROM orders WHERE status <> 'cancelled'
)
SELECT p.id AS product, p.name, coalesce(sum(m.quantity), 0) AS stock
FROM products p LEFT JOIN moved m ON m.product = p.id
GROUP BY p.id, p.name
