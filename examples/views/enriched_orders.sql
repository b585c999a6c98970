-- Orders with their customer as of now: a change of a customer corrects all of the customer's orders.
-- An order whose customer isn't there yet is shown without one, and completed later.
SELECT o.id, o.at, o.product, o.quantity, o.status, c.name AS customer, c.country
FROM orders o LEFT JOIN customers c ON c.id = o.customer
