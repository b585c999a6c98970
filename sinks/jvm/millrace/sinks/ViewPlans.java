package millrace.sinks;

import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.IdentityHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.regex.Pattern;
import org.apache.spark.sql.catalyst.AliasIdentifier;
import org.apache.spark.sql.catalyst.QueryPlanningTracker;
import org.apache.spark.sql.catalyst.analysis.EliminateSubqueryAliases;
import org.apache.spark.sql.catalyst.analysis.UnresolvedAttribute;
import org.apache.spark.sql.catalyst.analysis.UnresolvedRelation;
import org.apache.spark.sql.catalyst.analysis.UnresolvedTableValuedFunction;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.ArraySort$;
import org.apache.spark.sql.catalyst.expressions.ArraySort;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.CreateStruct;
import org.apache.spark.sql.catalyst.expressions.CurrentDate;
import org.apache.spark.sql.catalyst.expressions.CurrentTime;
import org.apache.spark.sql.catalyst.expressions.CurrentTimestampLike;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.If;
import org.apache.spark.sql.catalyst.expressions.IsNull;
import org.apache.spark.sql.catalyst.expressions.LambdaFunction;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.LocalTimestamp;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.RowOrdering;
import org.apache.spark.sql.catalyst.expressions.SortArray;
import org.apache.spark.sql.catalyst.expressions.SubqueryExpression;
import org.apache.spark.sql.catalyst.expressions.WindowExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.First;
import org.apache.spark.sql.catalyst.expressions.aggregate.Last;
import org.apache.spark.sql.catalyst.expressions.aggregate.ListAgg;
import org.apache.spark.sql.catalyst.expressions.aggregate.MaxBy;
import org.apache.spark.sql.catalyst.expressions.aggregate.MinBy;
import org.apache.spark.sql.catalyst.optimizer.InlineCTE;
import org.apache.spark.sql.catalyst.optimizer.PullOutGroupingExpressions;
import org.apache.spark.sql.catalyst.optimizer.PullupCorrelatedPredicates;
import org.apache.spark.sql.catalyst.optimizer.ReplaceDistinctWithAggregate;
import org.apache.spark.sql.catalyst.optimizer.ReplaceExceptWithAntiJoin;
import org.apache.spark.sql.catalyst.optimizer.ReplaceIntersectWithSemiJoin;
import org.apache.spark.sql.catalyst.optimizer.RewriteCorrelatedScalarSubquery;
import org.apache.spark.sql.catalyst.optimizer.RewriteLateralSubquery;
import org.apache.spark.sql.catalyst.optimizer.RewritePredicateSubquery;
import org.apache.spark.sql.catalyst.parser.ParseException;
import org.apache.spark.sql.catalyst.plans.logical.Command;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.ParsedStatement;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.SubqueryAlias;
import org.apache.spark.sql.catalyst.plans.logical.UnresolvedWith;
import org.apache.spark.sql.catalyst.trees.Origin;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.MetadataBuilder;
import org.apache.spark.sql.types.NumericType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimeType;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.unsafe.types.UTF8String;
import scala.Option;
import scala.PartialFunction;
import scala.Tuple3;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractPartialFunction;

/**
 * A view's query → Spark's analysed plan, and the steps on it that need Spark's own classes.
 *
 * <p>The tables that it reads are leaves without rows. The metadata of their columns has the
 * table's name. Each occurrence has its own columns, numbered by Spark's analysis.
 */
public final class ViewPlans {
  private static final String TABLE = "millrace.table";
  private static final int ROUNDS_MAX = 20;
  private static final long DAY_US = 86_400_000_000L;

  private static final String SPECIAL = "SpecialDatetime";
  private static final Pattern SPECIAL_TEXT =
      Pattern.compile("(?is)\\s*(now|today|tomorrow|yesterday)\\b.*");
  private static final Pattern SPECIAL_LITERAL =
      Pattern.compile("(?is)(date|timestamp\\w*)\\s*['\"]" + SPECIAL_TEXT.pattern().substring(5));

  private ViewPlans() {}

  /** Parse a query. */
  public static LogicalPlan parsed(SparkSession session, String sql) throws ParseException {
    return session.sessionState().sqlParser().parsePlan(sql);
  }

  /** Return the names of a query's tables, as the query writes them, in lower case. */
  public static List<String> relations(LogicalPlan parsed) {
    Set<String> names = new LinkedHashSet<>();
    withTables(parsed, Set.of(), name -> names.add(name) ? null : null);
    return new ArrayList<>(names);
  }

  /**
   * Analyse a parsed query: subqueries become joins, and set operations joins and groups.
   *
   * @param names the tables' possible names, in lower case, and the table that each means
   * @param schemas the columns of each table, as JSON
   */
  public static LogicalPlan analysed(
      SparkSession session,
      LogicalPlan parsed,
      Map<String, String> names,
      Map<String, String> schemas) {
    Map<String, LogicalPlan> leaves = new HashMap<>();
    names.forEach(
        (name, table) -> {
          if (schemas.containsKey(table)) {
            leaves.put(name, named(name, leaf(table, schemas.get(table))));
          }
        });
    LogicalPlan plan = withTables(parsed, Set.of(), leaves::get);
    plan =
        session
            .sessionState()
            .analyzer()
            .executeAndCheck(plan, new QueryPlanningTracker(Option.empty()));
    plan = EliminateSubqueryAliases.apply(new InlineCTE(true, false).apply(plan));
    for (int round = 0; round < ROUNDS_MAX; round++) {
      LogicalPlan next = EliminateSubqueryAliases.apply(rewritten(plan));
      if (next.fastEquals(plan)) {
        break;
      }
      plan = next;
    }
    return PullOutGroupingExpressions.apply(plan);
  }

  private static LogicalPlan rewritten(LogicalPlan plan) {
    LogicalPlan next = RewritePredicateSubquery.apply(pulledUp(plan));
    next = RewriteCorrelatedScalarSubquery.apply(next);
    next = RewriteLateralSubquery.apply(next);
    next = ReplaceIntersectWithSemiJoin.apply(next);
    next = ReplaceExceptWithAntiJoin.apply(next);
    return ReplaceDistinctWithAggregate.apply(next);
  }

  /**
   * Pull up the conditions with outer columns in all subqueries, at each depth.
   *
   * <p>The rewriting enters subqueries, and would lose the conditions of the inner ones.
   */
  private static LogicalPlan pulledUp(LogicalPlan plan) {
    return PullupCorrelatedPredicates.apply(plan)
        .transformAllExpressions(
            partial(
                each ->
                    each instanceof SubqueryExpression query
                        ? query.withNewPlan(pulledUp(query.plan()))
                        : null));
  }

  /** Replace tables' names by leaves, except names that WITH has in scope. */
  private static LogicalPlan withTables(
      LogicalPlan plan, Set<String> scope, Function<String, LogicalPlan> leaves) {
    if (plan instanceof UnresolvedWith with) {
      return withTables(with, scope, leaves);
    }
    String name = name(plan);
    LogicalPlan leaf = name == null || scope.contains(name) ? null : leaves.apply(name);
    if (leaf != null) {
      return leaf;
    }
    LogicalPlan below =
        plan.mapChildren(child -> withTables(child, scope, leaves));
    return below.transformExpressions(
            partial(
                node ->
                    node instanceof SubqueryExpression query
                        ? (Expression)
                            query.withNewPlan(
                                withTables(query.plan(), scope, leaves))
                        : null));
  }

  private static LogicalPlan withTables(
      UnresolvedWith with, Set<String> scope, Function<String, LogicalPlan> leaves) {
    Set<String> inner = new HashSet<>(scope);
    List<Tuple3<String, SubqueryAlias, Option<Object>>> relations = new ArrayList<>();
    for (Tuple3<String, SubqueryAlias, Option<Object>> each :
        CollectionConverters.asJava(with.cteRelations())) {
      if (with.allowRecursion()) {
        inner.add(each._1().toLowerCase(Locale.ROOT));
      }
      SubqueryAlias changed = (SubqueryAlias) withTables(each._2(), Set.copyOf(inner), leaves);
      relations.add(new Tuple3<>(each._1(), changed, each._3()));
      inner.add(each._1().toLowerCase(Locale.ROOT));
    }
    Seq<Tuple3<String, SubqueryAlias, Option<Object>>> all =
        CollectionConverters.asScala(relations).toSeq();
    LogicalPlan child = withTables(with.child(), inner, leaves);
    return new UnresolvedWith(child, all, with.allowRecursion());
  }

  /** Return a table's written name; for {@code changes(t)}, the name of the table of events. */
  private static String name(LogicalPlan node) {
    if (node instanceof UnresolvedRelation relation) {
      return dotted(relation.multipartIdentifier());
    }
    boolean isChanges =
        node instanceof UnresolvedTableValuedFunction call
            && dotted(call.name()).equals("changes")
            && call.functionArgs().size() == 1
            && call.functionArgs().head() instanceof UnresolvedAttribute;
    if (!isChanges) {
      return null;
    }
    Expression table = ((UnresolvedTableValuedFunction) node).functionArgs().head();
    return "changes(" + dotted(((UnresolvedAttribute) table).nameParts()) + ")";
  }

  private static String dotted(Seq<String> parts) {
    return String.join(".", CollectionConverters.asJava(parts)).toLowerCase(Locale.ROOT);
  }

  private static LogicalPlan leaf(String table, String schema) {
    Metadata metadata = new MetadataBuilder().putString(TABLE, table).build();
    List<Attribute> columns = new ArrayList<>();
    for (StructField field : ((StructType) StructType.fromJson(schema)).fields()) {
      columns.add(
          new AttributeReference(
              field.name(),
              field.dataType(),
              field.nullable(),
              metadata,
              NamedExpression.newExprId(),
              sequence(List.of())));
    }
    return new LocalRelation(sequence(columns), sequence(List.of()), false, Option.empty());
  }

  private static LogicalPlan named(String name, LogicalPlan leaf) {
    String written = name.startsWith("changes(") ? name.substring(8, name.length() - 1) : name;
    List<String> parts = List.of(written.split("\\."));
    List<String> qualifier = parts.subList(0, parts.size() - 1);
    return new SubqueryAlias(
        new AliasIdentifier(parts.get(parts.size() - 1), sequence(qualifier)), leaf);
  }

  /** Return the name of a plan's table; null: it isn't a table. */
  public static String table(LogicalPlan plan) {
    if (!(plan instanceof LocalRelation leaf) || leaf.output().isEmpty()) {
      return null;
    }
    Metadata metadata = leaf.output().head().metadata();
    return metadata.contains(TABLE) ? metadata.getString(TABLE) : null;
  }

  /** Return the names of the tables in subqueries that are still expressions. */
  public static List<String> inSubqueries(LogicalPlan plan) {
    Set<String> tables = new LinkedHashSet<>();
    eachNode(
        plan,
        node -> {
          if (table(node) != null) {
            tables.add(table(node));
          }
        });
    return new ArrayList<>(tables);
  }

  /** Return the plans of a plan's own subqueries that are expressions, without nested ones. */
  public static List<LogicalPlan> subqueries(LogicalPlan plan) {
    List<LogicalPlan> plans = new ArrayList<>();
    plan.foreach(
        node -> {
          plans.addAll(CollectionConverters.asJava(node.subqueries()));
          return null;
        });
    return plans;
  }

  /** Replace the plans of a plan's subqueries. */
  public static LogicalPlan withSubqueries(
      LogicalPlan plan, List<LogicalPlan> old, List<LogicalPlan> made) {
    Map<LogicalPlan, LogicalPlan> by = new IdentityHashMap<>();
    for (int place = 0; place < old.size(); place++) {
      by.put(old.get(place), made.get(place));
    }
    return plan.transformAllExpressions(
        partial(
            each ->
                each instanceof SubqueryExpression query && by.containsKey(query.plan())
                    ? query.withNewPlan(by.get(query.plan()))
                    : null));
  }

  /** Return the columns of tables in subqueries that are expressions: table, tab, column. */
  public static List<String> innerColumns(LogicalPlan plan) {
    Set<String> columns = new LinkedHashSet<>();
    plan.foreach(
        node -> {
          CollectionConverters.asJava(node.subqueries()).forEach(each -> columnsOf(each, columns));
          return null;
        });
    return new ArrayList<>(columns);
  }

  private static void columnsOf(LogicalPlan plan, Set<String> columns) {
    eachNode(
        plan,
        node -> {
          if (table(node) != null) {
            CollectionConverters.asJava(node.output())
                .forEach(each -> columns.add(table(node) + "\t" + each.name()));
          }
        });
  }

  /** Whether a statement isn't a query. */
  public static boolean isCommand(LogicalPlan parsed) {
    return parsed instanceof Command || parsed instanceof ParsedStatement;
  }

  /** Replace the leaves by the rows of their tables, also in subqueries. */
  public static LogicalPlan filled(LogicalPlan plan, Map<String, LogicalPlan> tables) {
    return plan.transformDownWithSubqueries(
        partial(
            node -> {
              LogicalPlan rows = table(node) == null ? null : tables.get(table(node));
              return rows == null ? null : under(node, rows);
            }));
  }

  /** Give rows the numbers of a leaf's columns. */
  private static LogicalPlan under(LogicalPlan leaf, LogicalPlan rows) {
    Map<String, Attribute> there = new HashMap<>();
    CollectionConverters.asJava(rows.output()).forEach(each -> there.put(each.name(), each));
    List<NamedExpression> columns = new ArrayList<>();
    for (Attribute each : CollectionConverters.asJava(leaf.output())) {
      columns.add(
          new Alias(
              there.get(each.name()),
              "column_" + each.exprId().id(), // Spark removes an alias of a column's own name
              each.exprId(),
              sequence(List.of()),
              Option.empty(),
              sequence(List.of())));
    }
    return new Project(sequence(columns), rows);
  }

  /** Fix the time that a plan asks for to an instant (µs since 1970). */
  public static LogicalPlan at(LogicalPlan plan, long micros) {
    return plan.transformAllExpressionsWithSubqueries(partial(node -> time(node, micros)));
  }

  private static Expression time(Expression node, long micros) {
    if (node instanceof CurrentDate) {
      int day = (int) Math.floorDiv(micros, DAY_US);
      return Literal.create(day, DataTypes.DateType);
    }
    if (node instanceof CurrentTime time && time.dataType() instanceof TimeType type) {
      long unit = (long) Math.pow(10, 9 - type.precision());
      long nanos = Math.floorMod(micros, DAY_US) * 1_000;
      return Literal.create(nanos - nanos % unit, type);
    }
    if (node instanceof LocalTimestamp) {
      return Literal.create(micros, DataTypes.TimestampNTZType);
    }
    return node instanceof CurrentTimestampLike
        ? Literal.create(micros, DataTypes.TimestampType)
        : null;
  }

  /**
   * Make the results of MAX_BY and MIN_BY unique.
   *
   * <p>Of rows that are equal in their order, they return the greatest or the least value.
   */
  public static LogicalPlan definite(LogicalPlan plan) {
    return plan.transformAllExpressionsWithSubqueries(
        partial(
            node -> {
              if (node instanceof MaxBy max) {
                return max.copy(max.valueExpr(), both(max.orderingExpr(), max.valueExpr()));
              }
              return node instanceof MinBy min
                  ? min.copy(min.valueExpr(), both(min.orderingExpr(), min.valueExpr()))
                  : null;
            }));
  }

  /** Return an order with the value as tie-breaker; rows without an order don't count. */
  private static Expression both(Expression order, Expression value) {
    if (!RowOrdering.isOrderable(value.dataType())) {
      return order;
    }
    Expression struct = CreateStruct.apply(sequence(List.of(order, value)));
    return new If(new IsNull(order), Literal.create(null, struct.dataType()), struct);
  }

  /** Whether a plan asks for the time. */
  public static boolean asksForTime(LogicalPlan plan) {
    boolean[] asks = {false};
    eachExpression(plan, node -> asks[0] |= time(node, 0) != null);
    return asks[0];
  }

  /** Whether an expression of this node has a query. */
  public static boolean hasSubquery(LogicalPlan plan) {
    return !plan.subqueries().isEmpty();
  }

  /**
   * Return expressions that aren't deterministic, or whose kind has one of the names.
   *
   * <p>Subqueries count. Lists in one order, and functions of ordered windows, don't. Each result
   * has kind, text, and line and column in the query (0: unknown), separated by tabs.
   */
  public static List<String> expressions(LogicalPlan plan, List<String> names) {
    Set<String> shown = new LinkedHashSet<>();
    Set<Expression> sorted = Collections.newSetFromMap(new IdentityHashMap<>());
    eachExpression(
        plan,
        node -> {
          if (isSort(node) && node.children().head() instanceof AggregateExpression list) {
            sorted.add(list.aggregateFunction());
          }
          if (node instanceof WindowExpression window
              && !window.windowSpec().orderSpec().isEmpty()
              && window.windowFunction() instanceof AggregateExpression call
              && (call.aggregateFunction() instanceof First
                  || call.aggregateFunction() instanceof Last)) {
            sorted.add(call.aggregateFunction());
          }
          if (node instanceof ListAgg list && isInOrder(list)) {
            sorted.add(list);
          }
          String kind = kind(node);
          boolean open = !node.deterministic() && node.children().forall(Expression::deterministic);
          if ((open || names.contains(kind)) && !sorted.contains(node)) {
            String sql = kind.equals(SPECIAL) ? written(node) : node.sql();
            shown.add(String.join("\t", kind, sql, place(node)));
          }
        });
    return new ArrayList<>(shown);
  }

  /** Whether an expression sorts a list by its values, without a comparison of the user's. */
  private static boolean isSort(Expression node) {
    return node instanceof SortArray
        || (node instanceof ArraySort sort
            && sort.function() instanceof LambdaFunction compare
            && compare
                .function()
                .semanticEquals(
                    ArraySort$.MODULE$.comparator(
                        (Expression) compare.arguments().apply(0), (Expression) compare.arguments().apply(1))));
  }

  /** Whether values that are equal in a list's order are the same. */
  private static boolean isInOrder(ListAgg list) {
    Expression value = list.child();
    Expression shown = value instanceof Cast cast ? cast.child() : value;
    return list.orderExpressions()
        .exists(
            each -> each.child().semanticEquals(value) || each.child().semanticEquals(shown));
  }

  /** Return an expression's kind: its class, or a part of that. */
  private static String kind(Expression node) {
    String name = node.getClass().getSimpleName();
    boolean isUnordered =
        (node instanceof MaxBy max && !RowOrdering.isOrderable(max.valueExpr().dataType()))
            || (node instanceof MinBy min && !RowOrdering.isOrderable(min.valueExpr().dataType()));
    return isUnordered ? name + "Unordered" : isSpecial(node) ? SPECIAL : name;
  }

  /** Whether it is a date or a time that Spark reads from the clock: DATE 'today'. */
  private static boolean isSpecial(Expression node) {
    if (!(node instanceof Literal || node instanceof Cast)) {
      return false;
    }
    DataType type = node.dataType();
    if (!(type instanceof DateType
        || type instanceof TimestampType
        || type instanceof TimestampNTZType)) {
      return false;
    }
    if (node instanceof Literal) {
      return SPECIAL_LITERAL.matcher(written(node)).matches();
    }
    return node instanceof Cast cast
        && cast.child().dataType() instanceof StringType
        && cast.child().foldable()
        && cast.child().eval(null) instanceof UTF8String text
        && SPECIAL_TEXT.matcher(text.toString()).matches();
  }

  /** Return an expression as the query has it. */
  private static String written(Expression node) {
    Origin origin = node.origin();
    boolean isThere =
        origin.sqlText().isDefined()
            && origin.startIndex().isDefined()
            && origin.stopIndex().isDefined();
    if (!isThere) {
      return node.sql();
    }
    int start = (Integer) origin.startIndex().get();
    return origin.sqlText().get().substring(start, (Integer) origin.stopIndex().get() + 1);
  }

  /** Return texts that the analysis turns into numbers, with line and column. */
  public static List<String> casts(LogicalPlan plan) {
    Set<String> shown = new LinkedHashSet<>();
    eachExpression(
        plan,
        node -> {
          if (node instanceof Cast cast
              && cast.child().dataType() instanceof StringType
              && cast.dataType() instanceof NumericType
              && cast.getTagValue(Cast.USER_SPECIFIED_CAST()).isEmpty()
              && !cast.child().foldable()) {
            shown.add(String.join("\t", "Cast", cast.sql(), place(node)));
          }
        });
    return new ArrayList<>(shown);
  }

  private static String place(Expression node) {
    Option<Object> line = node.origin().line();
    Option<Object> column = node.origin().startPosition();
    return (line.isDefined() ? line.get() : 0) + "\t" + (column.isDefined() ? column.get() : 0);
  }

  private static <T> Seq<T> sequence(List<? extends T> list) {
    return CollectionConverters.<T>asScala(new ArrayList<T>(list)).toSeq();
  }

  /** Visit all nodes of a plan, and of its subqueries. */
  private static void eachNode(LogicalPlan plan, Consumer<LogicalPlan> look) {
    plan.transformDownWithSubqueries(partial(node -> seen(node, look)));
  }

  /** Visit all expressions of a plan, and of its subqueries, each before its children. */
  private static void eachExpression(LogicalPlan plan, Consumer<Expression> look) {
    plan.transformAllExpressionsWithSubqueries(partial(node -> seen(node, look)));
  }

  private static <T> T seen(T node, Consumer<T> look) {
    look.accept(node);
    return null;
  }

  /** Return a function that is defined where it doesn't return null. */
  private static <T> PartialFunction<T, T> partial(Function<T, T> function) {
    return new AbstractPartialFunction<>() {
      @Override
      public boolean isDefinedAt(T node) {
        return function.apply(node) != null;
      }

      @Override
      public <A extends T, B> B applyOrElse(A node, scala.Function1<A, B> otherwise) {
        @SuppressWarnings("unchecked")
        B made = (B) function.apply(node);
        return made == null ? otherwise.apply(node) : made;
      }
    };
  }
}
